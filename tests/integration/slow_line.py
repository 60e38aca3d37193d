"""A line of a chosen speed between a command and a server, that counts what passes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from shoal.testing.patience import patient


class SlowLine:
    def __init__(self, server_url: str, bytes_per_s: float):
        parts = urlsplit(server_url)
        self._server = (parts.hostname, parts.port)
        self.bytes_per_s = bytes_per_s
        self.up = self.down = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept)

    def wait_for_up(self, num_bytes: int, timeout_s: float = 30.0) -> None:
        """Wait until this many bytes were sent to the server."""
        deadline = time.monotonic() + patient(timeout_s)
        while self.up < num_bytes:
            assert time.monotonic() < deadline, f"only {self.up} bytes in {timeout_s} s"
            time.sleep(0.005)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(near)
            try:
                far = socket.create_connection(self._server)
            except OSError:  # the server is down, and the line says so
                near.close()
                continue
            self._open.append(far)
            for source, sink, is_up in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._pump, args=(source, sink, is_up), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_up: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                with self._lock:  # one line: whoever passes holds the others up
                    time.sleep(len(data) / self.bytes_per_s)
                    if is_up:
                        self.up += len(data)
                    else:
                        self.down += len(data)
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)  # wakes whoever reads it
            except OSError:
                pass
            end.close()


@contextmanager
def slow_line(server_url: str, bytes_per_s: float) -> Iterator[SlowLine]:
    line = SlowLine(server_url, bytes_per_s)
    line._thread.start()
    try:
        yield line
    finally:
        line._listener.shutdown(socket.SHUT_RDWR)
        line._listener.close()
        line._thread.join()
        for end in line._open:
            end.close()
