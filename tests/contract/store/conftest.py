"""A bucket for each test, and a proxy in front of the S3 service that misbehaves on request."""

from __future__ import annotations

import http.client
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR
from urllib.parse import urlsplit

import pytest

Fault = Callable[[str, str, int], str | None]
"""(method, path, how many requests of this method and path came before) → "500" | "drop" | "slow" | "twice" | "cut" | None"""


class FaultyProxy:
    """Passes requests on, except where `fault` names something to do to one."""

    def __init__(self, upstream: str):
        self.fault: Fault = lambda *_: None
        self.seen: Counter[tuple[str, str]] = Counter()
        self.done: Counter[str] = Counter()
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:
                    self.close_connection = True

            def _pass(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                what = proxy.decide(self.command, self.path)
                if what in ("500", "403"):
                    return self._answer(int(what), [], b"<Error><Code>Failed</Code></Error>")
                if what == "drop":
                    self.connection.shutdown(SHUT_RDWR)
                    self.close_connection = True
                    return None
                if what == "slow":
                    time.sleep(0.3)
                for _ in range(2 if what == "twice" else 1):
                    status, headers, data = self._ask(body)
                if what == "cut":
                    self._answer(status, headers, data, send=len(data) // 2)
                    self.connection.shutdown(SHUT_RDWR)
                    self.close_connection = True
                    return None
                return self._answer(status, headers, data)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass

            def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
                upstream_parts = urlsplit(upstream)
                link = http.client.HTTPConnection(upstream_parts.hostname or "", upstream_parts.port, timeout=30)
                try:
                    link.request(self.command, self.path, body, dict(self.headers))
                    answer = link.getresponse()
                    return answer.status, answer.getheaders(), answer.read()
                finally:
                    link.close()

            def _answer(
                self, status: int, headers: list[tuple[str, str]], data: bytes, send: int | None = None
            ) -> None:
                self.send_response(status)
                length = str(len(data))
                for name, value in headers:
                    if name.lower() == "content-length" and self.command == "HEAD":
                        length = value
                    elif name.lower() not in ("content-length", "connection", "transfer-encoding", "server", "date"):
                        self.send_header(name, value)
                self.send_header("Content-Length", length)
                self.end_headers()
                self.wfile.write(data[:send])

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def decide(self, method: str, path: str) -> str | None:
        with self._lock:
            before = self.seen[method, path]
            self.seen[method, path] += 1
            what = self.fault(method, path, before)
            if what:
                self.done[what] += 1
            return what

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="session")
def s3_server(s3_port: int) -> str:
    return f"http://127.0.0.1:{s3_port}"


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The name of a new bucket; credentials are in the environment."""
    for name in [n for n in os.environ if n.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    name = f"b{abs(hash(request.node.nodeid)):x}"
    link = http.client.HTTPConnection(s3_server.removeprefix("http://"), timeout=10)
    link.request(
        "PUT", f"/{name}", headers={"Authorization": "AWS4-HMAC-SHA256 Credential=test/x/us-east-1/s3/aws4_request"}
    )
    assert link.getresponse().status == 200
    link.close()
    return name


@pytest.fixture
def proxy(s3_server: str) -> Iterator[FaultyProxy]:
    made = FaultyProxy(s3_server)
    yield made
    made.close()
