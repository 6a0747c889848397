"""A local chat server that misbehaves on order: a few lines of the OpenAI protocol, scripted."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import threading
import time
from collections.abc import Callable
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from file_server import running

KEY = "sk-very-secret-0123456789"


class ChatServer(ThreadingHTTPServer):
    """``plan``: what to do with the next requests, one word each, then all is well: a status with optional
    Retry-After ``429:0.2``, ``hang`` (until the test ends), ``trickle`` (a byte every 0.05 s), ``empty``,
    ``html``, ``cut-json``, ``break`` (off), ``huge``, ``gzip``, ``huge-error``, ``long-error``,
    ``choices:N``, ``length``, ``filter``, ``refusal``, ``policy``, ``bare`` (no usage); and lies: ``tokens``
    (counts that can be none), ``nan`` (probabilities that are no numbers), ``half`` (half of a
    surrogate pair at the end of the text), ``stranger`` (another model's name).
    ``answer`` gives the text for a prompt (``look``, where set, for a whole body), ``logprobs`` its tokens
    (None: not offered), ``refuse`` maps a field to the message of a 400. ``log`` holds (time, body) of every
    request, ``headers`` their headers, ``busy`` the most in flight.
    """

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.plan: list[str] = []
        self.answer: Callable[[str], str] = lambda prompt: f"about {prompt}"
        self.look: Callable[[dict[str, Any]], str] | None = None
        self.logprobs: Callable[[str], list[dict[str, Any]] | None] = lambda prompt: None
        self.refuse: dict[str, str] = {}
        self.log: list[tuple[float, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []  # names in lower case
        self.listed: list[str] = ["m"]
        self.pause = 0.0
        self.busy = self.now_busy = 0
        self.lock = threading.Lock()
        self.done = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [body for _, body in self.log]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that gave up is what the tests are about: no traceback."""


@cache
def unfolding() -> bytes:
    return gzip.compress(bytes(100_000_000))


def prompt_of(body: dict[str, Any]) -> str:
    content = body["messages"][0]["content"]
    return content if isinstance(content, str) else content[-1]["text"]


class Handler(BaseHTTPRequestHandler):
    server: ChatServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        server = self.server
        order = server.plan.pop(0) if server.plan else "well"
        if order == "hang":
            server.done.wait(20)
            return
        if order.isdigit():
            return self.reply(int(order), {"error": {"message": f"no: {self.headers['Authorization']}"}})
        self.reply(200, {"object": "list", "data": [{"id": name} for name in server.listed]})

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.log.append((time.monotonic(), body))
            server.headers.append({name.lower(): value for name, value in self.headers.items()})
            order = server.plan.pop(0) if server.plan else "well"
            server.now_busy += 1
            server.busy = max(server.busy, server.now_busy)
        time.sleep(server.pause)
        with server.lock:
            server.now_busy -= 1
        self.act(order, body)

    def act(self, order: str, body: dict[str, Any]) -> None:
        server = self.server
        word, _, detail = order.partition(":")
        if word.isdigit():
            after = {"Retry-After": detail} if detail else {}
            return self.reply(
                int(word), {"error": {"message": f"no: {self.headers['Authorization']}"}}, after
            )
        if word in ("hang", "trickle"):
            if word == "trickle":
                self.send_response(200)
                self.end_headers()
                while not server.done.wait(0.05):
                    self.wfile.write(b" ")
            server.done.wait(20)
            return
        if word == "gzip":  # 100 kB that unfold into 100 MB
            return self.reply(200, unfolding(), {"Content-Encoding": "gzip"})
        if word == "huge-error":
            return self.reply(400, {"error": {"message": "x" * 6_000_000}})
        if word == "long-error":  # the key across the 300th character
            key = self.headers["Authorization"].removeprefix("Bearer ")
            return self.reply(418, {"error": {"message": "y" * 290 + key}})
        if word == "huge":
            return self.reply(200, b" " * 6_000_000)
        if word == "break":
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b'{"choices": [')
            self.close_connection = True
            return
        if word == "empty":
            return self.reply(200, b"")
        if word == "html":
            return self.reply(200, b"<html>busy</html>")
        for name, message in server.refuse.items():
            if name in body:
                return self.reply(400, {"error": {"message": message, "code": "invalid"}})
        if word == "policy":
            return self.reply(400, {"error": {"message": "no", "code": "content_filter"}})
        text = server.look(body) if server.look else server.answer(prompt_of(body))
        text += "\ud83d" if word == "half" else ""
        choice: dict[str, Any] = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": text},
        }
        if word == "length":
            choice["finish_reason"] = "length"
        if word == "filter":
            choice |= {"finish_reason": "content_filter", "message": {"role": "assistant", "content": None}}
        if word == "refusal":
            choice["message"] |= {"content": None, "refusal": "I can't do that"}
        if body.get("logprobs") and server.logprobs(prompt_of(body)):
            choice["logprobs"] = {"content": server.logprobs(prompt_of(body))}
        if word == "nan":
            choice["logprobs"] = {"content": [{"token": "true", "logprob": math.nan, "top_logprobs": []}]}
        count = int(detail) if word == "choices" else 1
        data: dict[str, Any] = {"id": "1", "object": "chat.completion", "created": 1, "model": "m-2026"}
        data["choices"] = [choice] * count
        if word != "bare":
            data["usage"] = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
        if word == "tokens":
            data["usage"] = {"prompt_tokens": -5, "completion_tokens": 10**30}
        if word == "stranger":
            data["model"] = "somebody-else"
        content = json.dumps(data).encode()
        self.reply(200, content[: len(content) // 2] if word == "cut-json" else content)

    def reply(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def chatting(port: int = 0) -> contextlib.AbstractContextManager[ChatServer]:
    """A chat server for the length of a test."""
    return running(ChatServer(port))
