"""A small Hugging Face hub on loopback: what its library asks of the true one, and ways to fail.

``/api/datasets/REPO[/revision/REV]``, ``/api/datasets/REPO/tree/REV`` in pages, and ``/datasets/REPO/resolve/REV/PATH`` by HEAD and
GET, whole and by Range; models likewise, at ``/api/models/REPO`` and ``/REPO/resolve``. Large files are redirected to a second
server, as to a store of blobs that is not the hub.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest

LFS = 1000
"""Bytes from which on a file is in the store of blobs."""
PAGE = 3
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def git_digest(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Repo:
    """A data set or model: its commits, the newest last."""

    commits: dict[str, dict[str, bytes]]
    licence: str = "mit"
    token: str = ""

    @property
    def newest(self) -> str:
        return list(self.commits)[-1]


@dataclass
class Asked:
    """A request as it came."""

    server: str
    method: str
    path: str
    headers: dict[str, str]


@dataclass
class Fault:
    """What happens to requests for a path: ``times`` of them, or all if negative."""

    method: str
    path: str
    times: int
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    cut: int = -1
    change: Callable[[bytes], bytes] | None = None
    hold: bool = False
    whole: bool = False
    body: bytes = b""


class Hub:
    """The two servers, what they hold, and what they were asked."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.asked: list[Asked] = []
        self.faults: list[Fault] = []
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self.servers = [ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, name)) for name in ("hub", "store")]
        for server in self.servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        self.url, self.store = (f"http://127.0.0.1:{server.server_port}" for server in self.servers)

    def add(self, repo: str, files: dict[str, bytes], commit: str = "", **options: Any) -> str:
        """A commit of a repository; gives its name."""
        commit = commit or hashlib.sha1(repr((repo, sorted(files.items()))).encode()).hexdigest()
        self.repos.setdefault(repo, Repo({}, **options)).commits[commit] = dict(files)
        return commit

    def fail(self, path: str, times: int = -1, method: str = "GET", **what: Any) -> None:
        """Requests whose path matches go wrong: ``status`` with ``body``, ``cut`` after so many bytes (``hold`` the line open),
        ``change`` of the bytes, the ``whole`` file instead of a range.
        """
        self.faults.append(Fault(method, path, times, **what))

    def fault(self, method: str, path: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.method == method and fault.times and fnmatch.fnmatchcase(path, fault.path):
                    fault.times -= 1
                    return fault
        return None

    def got(self, path: str, method: str = "GET") -> list[Asked]:
        """The requests for paths that match."""
        return [one for one in self.asked if one.method == method and fnmatch.fnmatchcase(one.path, path)]

    def blob(self, digest: str) -> bytes | None:
        contents = (
            content for repo in self.repos.values() for files in repo.commits.values() for content in files.values()
        )
        return next((content for content in contents if hashlib.sha256(content).hexdigest() == digest), None)

    def close(self) -> None:
        self.closing.set()
        for server in self.servers:
            server.shutdown()
            server.server_close()


def _handler(hub: Hub, name: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.serve()

        def do_GET(self) -> None:
            self.serve()

        def serve(self) -> None:
            url = urlsplit(self.path)
            path = unquote(url.path)
            hub.asked.append(
                Asked(name, self.command, path, {key.lower(): value for key, value in self.headers.items()})
            )
            self.wrong = hub.fault(self.command, path)
            if self.wrong and self.wrong.status:
                return self.answer(self.wrong.status, self.wrong.body, self.wrong.headers)
            if name == "store":
                content = hub.blob(path.removeprefix("/blob/"))
                return self.missing("EntryNotFound") if content is None else self.content(content, {})
            api = re.fullmatch(r"/api/(?:datasets|models)/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path)
            file = re.fullmatch(r"(?:/datasets)?/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
            if not api and not file:
                return self.missing("")
            repo = hub.repos.get((api or file)[1])  # type: ignore[index]
            if repo is None:
                return self.missing("RepoNotFound")
            if repo.token and self.headers.get("authorization") != f"Bearer {repo.token}":
                return self.answer(401, b"", {"X-Error-Code": "GatedRepo"})
            revision = (file[2] if file else api[3]) or "main"  # type: ignore[index]
            commit = repo.newest if revision == "main" else revision
            if commit not in repo.commits:
                return self.missing("RevisionNotFound")
            files = repo.commits[commit]
            if file:
                return self.resolve(commit, files.get(file[3]))
            if api[2] == "tree":  # type: ignore[index]
                return self.tree(files, int(parse_qs(url.query).get("cursor", ["0"])[0]), path)
            info = {
                "id": api[1],
                "sha": commit,
                "tags": [f"license:{repo.licence}"] if repo.licence else [],
                "gated": False,
                "siblings": [{"rfilename": file} for file in files],
            }  # type: ignore[index]
            return self.answer(200, json.dumps(info).encode(), {"Content-Type": "application/json"})

        def tree(self, files: dict[str, bytes], start: int, path: str) -> None:
            rows: list[dict[str, Any]] = [
                {"type": "directory", "path": folder, "oid": "0" * 40, "size": 0}
                for folder in sorted({name.rsplit("/", 1)[0] for name in files if "/" in name})
            ]
            for file, content in files.items():
                row = {"type": "file", "path": file, "size": len(content), "oid": git_digest(content)}
                if len(content) >= LFS:
                    digest = hashlib.sha256(content).hexdigest()
                    row |= {"lfs": {"oid": digest, "size": len(content), "pointerSize": 130}, "oid": "1" * 40}
                rows.append(row)
            headers = {"Content-Type": "application/json"}
            if len(rows) > start + PAGE:
                headers["Link"] = f'<{hub.url}{quote(path)}?recursive=True&cursor={start + PAGE}>; rel="next"'
            self.answer(200, json.dumps(rows[start : start + PAGE]).encode(), headers)

        def resolve(self, commit: str, content: bytes | None) -> None:
            if content is None:
                return self.missing("EntryNotFound")
            headers = {"X-Repo-Commit": commit}
            if len(content) < LFS:
                return self.content(content, headers | {"ETag": f'"{git_digest(content)}"'})
            digest = hashlib.sha256(content).hexdigest()
            headers |= {"X-Linked-ETag": f'"{digest}"', "X-Linked-Size": str(len(content))}
            self.answer(302, b"", headers | {"Location": f"{hub.store}/blob/{digest}?signature=signed"})

        def content(self, content: bytes, headers: dict[str, str]) -> None:
            status = 200
            wanted = "" if self.wrong and self.wrong.whole else self.headers.get("range", "")
            if found := re.fullmatch(r"bytes=(\d+)-(\d*)", wanted):
                first, last = int(found[1]), int(found[2] or len(content) - 1)
                headers = headers | {"Content-Range": f"bytes {first}-{last}/{len(content)}"}
                content, status = content[first : last + 1], 206
            if self.wrong and self.wrong.change:
                content = self.wrong.change(content)
            self.answer(status, content, headers | {"Accept-Ranges": "bytes"})

        def missing(self, code: str) -> None:
            self.answer(404, b"", {"X-Error-Code": code})

        def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "HEAD":
                return
            if self.wrong and self.wrong.cut >= 0:
                self.wfile.write(body[: self.wrong.cut])
                self.wfile.flush()
                while self.wrong.hold and not hub.closing.wait(0.02):
                    pass
                self.close_connection = True
                return
            self.wfile.write(body)

    return Handler


@contextmanager
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub, with this process asking it and no other host: a connection beyond loopback fails the test. Waits take no time."""
    import huggingface_hub
    from huggingface_hub import constants

    hub, strangers, connect = Hub(), [], socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and address[0] not in LOOPBACK:
            strangers.append(address)
            raise AssertionError(f"a connection to {address}")
        connect(self, address)

    for name, value in environment(hub).items():
        monkeypatch.setenv(name, value)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(socket.socket, "connect", guarded)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    huggingface_hub.close_session()
    try:
        yield hub
    finally:
        huggingface_hub.close_session()
        hub.close()
    assert not strangers


def environment(hub: Hub) -> dict[str, str]:
    """Variables by which a process asks this hub."""
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
