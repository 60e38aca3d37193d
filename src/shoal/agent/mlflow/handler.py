"""HTTP of the tracking API: one connection, with the standard library."""

from __future__ import annotations

import socket
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from shoal.agent.mlflow.listener import LARGEST, encode

Answer = Callable[[str, str, bytes], tuple[int, dict[str, Any]]]
_IDLE_S = 300.0


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection until it is closed."""

    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S
    disable_nagle_algorithm = False  # a Unix socket has none

    def __init__(self, client: socket.socket, answer: Answer):
        self._answer = answer
        super().__init__(client, ("local", 0), None)  # type: ignore[arg-type]

    def _serve(self) -> None:
        size = self.headers.get("Content-Length", "0")
        if not size.isdecimal() or int(size) > LARGEST or "Transfer-Encoding" in self.headers:
            self.close_connection = True
            self._send(413, {"error_code": "BAD_REQUEST", "message": f"A request has at most {LARGEST} bytes"})
            return
        self._send(*self._answer(self.command, self.path, self.rfile.read(int(size))))

    do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = _serve

    def _send(self, status: int, answer: dict[str, Any]) -> None:
        status, body = encode(status, answer)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a script may log thousands of metrics."""
