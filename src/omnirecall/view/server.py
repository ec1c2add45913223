"""The server: Starlette on a loopback address, read only, with headers that keep the page to itself."""

from __future__ import annotations

import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from omnirecall.errors import RunError, UserError, require
from omnirecall.sources.packed import unpacked
from omnirecall.view.pages import Page, Pages
from omnirecall.view.policy import content_policy, static_files
from omnirecall.view.ranks import give_back, spare_memory

HOST = "127.0.0.1"
AT_ONCE = 3
"""Pages made at a time, which bounds the memory that they take."""
NAMES = ("127.0.0.1", "localhost", "[::1]")
"""By which names the page may be asked for; any other is a page of another site that had its name point here."""
STATIC_KINDS = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
}


def application(pages: Pages) -> Any:
    """The ASGI application."""
    applications, routing = require("starlette.applications", "view"), require("starlette.routing", "view")
    responses, middleware = require("starlette.responses", "view"), require("starlette.middleware", "view")
    files = static_files()
    at_once = threading.BoundedSemaphore(AT_ONCE)

    def answer(request: Any) -> Any:
        path = request.url.path.removeprefix("/")
        if path in files:
            return responses.FileResponse(
                files[path],
                media_type=STATIC_KINDS.get(files[path].suffix, "text/plain"),
                headers={"Cache-Control": "no-cache"},
            )
        with at_once:
            page = pages.answer(path, dict(request.query_params))
            if not path.startswith("m/"):
                give_back()
        return _response(responses, page, request)

    return applications.Starlette(
        routes=[routing.Route("/{path:path}", answer, methods=["GET"])],
        middleware=[middleware.Middleware(_Guard)],
    )


class _Guard:
    """Refuses other hosts' names, and puts the headers on every answer."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        if host.rsplit(":", 1)[0] not in NAMES and host not in NAMES:
            await _plain(send, 421, "This page answers only to its own address on this machine.")
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_headers()]
            await send(message)

        await self.app(scope, receive, with_headers)


def _headers() -> list[tuple[bytes, bytes]]:
    headers = {
        "content-security-policy": content_policy(),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-resource-policy": "same-origin",
        "cross-origin-opener-policy": "same-origin",
        "permissions-policy": "camera=(), microphone=(), geolocation=()",
    }
    return [(name.encode(), value.encode()) for name, value in headers.items()]


async def _plain(send: Any, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


def _response(responses: Any, page: Page, request: Any) -> Any:
    headers = {"Cache-Control": "no-cache" if page.fresh else "private, max-age=3600"}
    if page.download:
        headers["Content-Disposition"] = f'attachment; filename="{page.download}"'
    if page.ref is None:
        return responses.Response(page.body, page.status, headers, page.kind)
    content = unpacked(page.ref)
    if isinstance(content, Path):
        return responses.FileResponse(content, page.status, headers, page.kind)
    return _part(responses, content, page, request.headers, headers)


def _part(responses: Any, content: bytes, page: Page, asked: Mapping[str, str], headers: dict[str, str]) -> Any:
    """Bytes held in memory, whole or the one range that was asked for."""
    headers["Accept-Ranges"] = "bytes"
    unit, _, span = asked.get("range", "").partition("=")
    first, dash, last = span.partition("-")
    if unit != "bytes" or not dash or "," in span or not (first + last).isdecimal():
        return responses.Response(content, page.status, headers, page.kind)
    size = len(content)
    start = int(first) if first else max(0, size - int(last))
    end = min(size - 1, int(last)) if first and last else size - 1
    if start >= size or end < start:
        return responses.Response(b"", 416, {**headers, "Content-Range": f"bytes */{size}"})
    headers["Content-Range"] = f"bytes {start}-{end}/{size}"
    return responses.Response(content[start : end + 1], 206, headers, page.kind)


def serve(pages: Pages, port: int, browser: bool, say: Any) -> None:
    """Serve until stopped. UserError where the port is taken. ``say`` is given the address once it answers."""
    uvicorn = require("uvicorn", "view")
    spare_memory()
    pages.warm()
    with _bound(port) as listening:
        url = f"http://{HOST}:{listening.getsockname()[1]}/"
        config = uvicorn.Config(
            application(pages),
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            date_header=False,
        )
        server = uvicorn.Server(config)
        say(url)
        if browser:
            threading.Timer(0.5, webbrowser.open, [url]).start()
        signal.signal(signal.SIGTERM, _stopped)  # uvicorn stops at it, then lets it come again
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listening])
    if not server.started:
        raise RunError("the server did not start")


def _stopped(number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _bound(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if sys.platform != "win32":
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen(128)  # so that whoever is told the address can ask at once
    except OSError as error:
        listening.close()
        raise UserError(
            f"--port {port}: cannot be used on {HOST}: {error.strerror}; give another, or 0 for any"
        ) from None
    return listening
