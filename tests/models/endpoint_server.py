"""An embeddings endpoint on loopback: the three forms of request, and ways to fail.

A vector is drawn from the hash of what was sent for the item, so a test can tell which item a vector is of.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

DIMENSION = 6


def vector_of(sent: Any, dimension: int = DIMENSION) -> np.ndarray:
    """What the server gives for a text, a data URL or a list of messages."""
    digest = hashlib.sha256(json.dumps(sent, sort_keys=True).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8])).standard_normal(dimension).astype(np.float32)


@dataclass
class Fault:
    """What happens to a request instead of, or to, a good answer.

    ``change`` alters the parsed answer; ``raw`` replaces its bytes; ``cut`` closes the line after so many bytes; ``seconds`` are
    waited first; ``drop`` closes the line at once.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    change: Callable[[dict[str, Any]], None] | None = None
    raw: bytes | None = None
    cut: int = -1
    seconds: float = 0.0
    drop: bool = False


@dataclass
class Asked:
    """A request as it came."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class Server:
    """The server, the faults in store (one a request, in order; then ``always``), and what it was asked."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.always: Fault | None = None
        self.most_items: int | None = None
        self.asked: list[Asked] = []
        self.busy = 0
        self.most_busy = 0
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.http.daemon_threads = True
        self.http.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that hangs up is meant
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"

    def fault(self) -> Fault:
        with self.lock:
            return self.faults.pop(0) if self.faults else self.always or Fault()

    def close(self) -> None:
        self.closing.set()
        self.http.shutdown()
        self.http.server_close()


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            headers = {key.lower(): value for key, value in self.headers.items()}
            with server.lock:
                server.asked.append(Asked(self.path, headers, body))
                server.busy += 1
                server.most_busy = max(server.most_busy, server.busy)
            try:
                self.answer(body, server.fault())
            finally:
                with server.lock:
                    server.busy -= 1

        def answer(self, body: dict[str, Any], fault: Fault) -> None:
            server.closing.wait(fault.seconds)
            if fault.drop:
                self.close_connection = True
                return
            sent = [body["messages"]] if "messages" in body else body["input"]
            status, content = fault.status, fault.raw
            if server.most_items is not None and len(sent) > server.most_items:
                status, content = 413, b'{"error": {"message": "too large"}}'
            elif content is None and status == 200:
                content = json.dumps(self.good(sent, body, fault)).encode()
            content = content or b""
            self.send_response(status)
            for key, value in fault.headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if fault.cut >= 0:
                self.wfile.write(content[: fault.cut])
                self.close_connection = True
            else:
                self.wfile.write(content)

        def good(self, sent: list[Any], body: dict[str, Any], fault: Fault) -> dict[str, Any]:
            rows = []
            for index, one in enumerate(sent):
                vector: Any = vector_of(one, body.get("dimensions", DIMENSION))
                if body["encoding_format"] == "base64":
                    vector = base64.b64encode(vector.astype("<f4").tobytes()).decode()
                else:
                    vector = vector.tolist()
                rows.append({"object": "embedding", "index": index, "embedding": vector})
            found = {"object": "list", "model": body["model"], "data": rows, "usage": {"total_tokens": 1}}
            if fault.change:
                fault.change(found)
            return found

    return Handler


@contextmanager
def serving() -> Iterator[Server]:
    """A server that is closed at the end."""
    server = Server()
    try:
        yield server
    finally:
        server.close()
