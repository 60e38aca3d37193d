"""Access to the package index for hosts that have none: a proxy for CONNECT requests."""

from __future__ import annotations

import select
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def connect_proxy(address: str) -> Iterator[str]:
    """Its URL, at this address."""
    socketserver.ThreadingTCPServer.allow_reuse_address = True
    with socketserver.ThreadingTCPServer((address, 0), _Caller) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://{address}:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


class _Caller(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        method, target, _ = self.rfile.readline().decode().split()
        while self.rfile.readline().strip():
            pass
        host, _, port = target.rpartition(":")
        if method != "CONNECT":
            self.wfile.write(b"HTTP/1.1 405 Method Not Allowed\r\n\r\n")
            return
        with suppress(OSError), socket.create_connection((host, int(port)), 30) as there:
            self.wfile.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            _pass_on(self.connection, there)


def _pass_on(here: socket.socket, there: socket.socket) -> None:
    """Both ways, until either ends."""
    other = {here: there, there: here}
    while True:
        for line in select.select(list(other), [], [])[0]:
            piece = line.recv(1 << 16)
            if not piece:
                return
            other[line].sendall(piece)
