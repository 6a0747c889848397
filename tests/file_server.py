"""A local HTTP server that misbehaves on order: it cuts, corrupts, redirects, stalls, and forgets ranges."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

#: A server of http.server with an event ``done``.
Server = TypeVar("Server", bound=Any)


class FileServer(ThreadingHTTPServer):
    """``files``: path -> content. ``plans``: path -> what to do at the next requests, one word each (then all
    is well): ``cut:N`` (stop after N bytes), ``corrupt``, ``html``, ``stall``, ``no-range``, ``no-length:N``
    (close after N bytes without having stated a length), ``redirect:PATH``, or a status such as ``503``.
    ``log``: (path, request headers) of every request.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.plans: dict[str, list[str]] = {}
        self.log: list[tuple[str, dict[str, str]]] = []
        self.done = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def ranges(self, path: str) -> list[str | None]:
        """The Range header of each request for ``path``."""
        return [headers.get("Range") for asked, headers in self.log if asked == path]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that gave up is what the tests are about: no traceback."""


class Handler(BaseHTTPRequestHandler):
    server: FileServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        path = self.path.lstrip("/")
        self.server.log.append((path, dict(self.headers)))
        plan = self.server.plans.get(path) or ["well"]
        order = plan.pop(0)
        word, _, detail = order.partition(":")
        if word == "stall":
            self.server.done.wait(5)
            return
        if word == "redirect":
            self.send_response(302)
            self.send_header("Location", f"/{detail}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if word.isdigit() or path not in self.server.files:
            self.send_error(int(word) if word.isdigit() else 404)
            return
        content = self.server.files[path]
        tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        if word == "corrupt":
            content = content[:-1] + bytes([content[-1] ^ 255])
        if word == "html":
            content = b"<!DOCTYPE html><title>Log in</title>"
        start = 0
        asked = self.headers.get("Range")
        same = self.headers.get("If-Range", tag) == tag
        if asked and same and word != "no-range":
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        body = content[start:]
        self.send_header("ETag", tag)
        if word != "no-length":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if word in ("cut", "no-length"):
            body = body[: int(detail)]
        self.wfile.write(body)
        self.close_connection = True


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    """The server in a thread of its own for the length of a test; ``done`` then frees what still waits."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.done.set()
        server.shutdown()
        server.server_close()


def serving() -> contextlib.AbstractContextManager[FileServer]:
    """A file server for the length of a test."""
    return running(FileServer())
