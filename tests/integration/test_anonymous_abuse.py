"""Strangers who send too much, too slowly and from too many connections: the server's memory stays, and so does a job."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import psutil
import pytest

from shoal.client.server_record import running_server
from shoal.core.states import JobState
from shoal.testing.live import LiveServer, live_server

PRELOADS = False
GROWTH = 64 << 20
TIMEOUT_S = 60.0
SCRIPT = "import time\nprint('here', flush=True)\ntime.sleep(600)\n"
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[LiveServer]:
    with live_server(tmp_path_factory.mktemp("home"), slots=1, warm=False) as server:
        yield server


def test_strangers_neither_fill_the_memory_nor_lose_a_job(server, tmp_path):
    (tmp_path / "wait.py").write_text(SCRIPT)
    server.cli("training", "run", "waits", "--dir", str(tmp_path), "--", "wait.py")
    server.wait_for("waits", lambda job: job.status == JobState.RUNNING)
    record = running_server(server.layout)
    process, where = psutil.Process(record.pid), urlsplit(record.url)

    def connect() -> socket.socket:
        return socket.create_connection((where.hostname, where.port), TIMEOUT_S)

    with server.client() as client, ExitStack() as lines:
        for _ in range(20):  # all code that answers is loaded, all threads are there
            client.jobs.list()
        before = process.memory_info().rss

        def grown() -> int:
            client.jobs.list()
            return process.memory_info().rss - before

        peaks = {}
        for name, abuse in (("large JSON", large_json), ("headers", many_headers), ("ranges", many_ranges)):
            for _ in range(8):
                abuse(connect())
            peaks[name] = grown()
        half_open = [lines.enter_context(connect()) for _ in range(800)]
        for line in half_open:
            with contextlib.suppress(OSError):  # those over the limit were closed
                line.sendall(b"POST /api/v1/auth/sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        # Someone who has signed in keeps their connection; only new strangers wait.
        peaks["half-open"] = grown()
        for line in half_open:
            line.close()
        for _ in range(100):
            slow = lines.enter_context(connect())
            slow.sendall(b"POST /api/v1/auth/sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 60000\r\n\r\n{")
        peaks["0.1 B/s"] = grown()
        assert max(peaks.values()) <= GROWTH, peaks
        job = client.jobs.get("waits")
        assert (job.status, job.attempts) == (JobState.RUNNING, 1)
    server.cli("training", "stop", "waits", "--wait")


def large_json(line: socket.socket) -> None:
    """Send 60 MB without a key, as far as the server takes them."""
    with line:
        head = b"POST /api/v1/auth/sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        with contextlib.suppress(ConnectionError):
            line.sendall(head + b"Content-Length: 60000000\r\n\r\n")
            for _ in range(60):
                line.sendall(b"[" * 1_000_000)
        assert b" 200 " not in answer(line)


def many_headers(line: socket.socket) -> None:
    with line:
        with contextlib.suppress(ConnectionError):
            line.sendall(
                b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"".join(b"X-%d: 1\r\n" % n for n in range(5_000)) + b"\r\n"
            )
        assert b" 200 " not in answer(line)


def many_ranges(line: socket.socket) -> None:
    with line:
        line.sendall(
            b"GET /api/v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nRange: bytes=" + b"0-1," * 10_000 + b"0-1\r\n\r\n"
        )
        assert b" 200 " in answer(line)


def answer(line: socket.socket) -> bytes:
    try:
        return line.recv(200)
    except ConnectionError:
        return b""
