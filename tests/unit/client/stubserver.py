"""A scripted HTTP server on the loopback: each test says what it answers and reads what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Asked:
    method: str
    path: str
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class Stub:
    """A route's answer if there is one; else the answers in order, the last one repeating."""

    url: str = ""
    routes: dict[str, Answer] = field(default_factory=dict)
    """`GET /path`, without the prefix and the query."""
    answers: list[Answer] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)
    """Set when the test is over, so that no handler waits on."""

    def will(self, *answers: Answer) -> None:
        self.answers = list(answers)

    def take(self, method: str, path: str) -> Answer:
        route = f"{method} {path.partition('?')[0].removeprefix('/api/v1')}"
        if route in self.routes:
            return self.routes[route]
        if not self.answers:
            return reply(404, {"error": {"code": "not_found", "message": f"no route {route}"}})
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def reply(status: int = 200, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in (headers or {}).items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(raw)))
        handler.end_headers()
        handler.wfile.write(raw)

    return answer


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    """Close the connection without a word."""
    handler.close_connection = True


def stream(*pieces: bytes) -> Answer:
    """Server-sent events in the given pieces, then a closed connection."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        for piece in pieces:
            handler.wfile.write(piece)
            handler.wfile.flush()
        handler.close_connection = True

    return answer


@contextmanager
def running_stub() -> Iterator[Stub]:
    made = Stub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            made.asked.append(Asked(self.command, self.path, body, dict(self.headers)))
            made.take(self.command, self.path)(self)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.release.set()
    server.shutdown()
    server.server_close()
    thread.join()
