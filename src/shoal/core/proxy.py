"""What our two proxies (the server's for imports, the agent's for leases) have in common."""

from __future__ import annotations

import socket

_MOST = 32 << 10


def read_head(client: socket.socket) -> tuple[bytes, bytes]:
    """A request's head, and what came with it; ValueError if it is none."""
    data = b""
    while b"\r\n\r\n" not in data:
        block = client.recv(_MOST)
        if not block or len(data) > _MOST:
            raise ValueError("not an HTTP request")
        data += block
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest
