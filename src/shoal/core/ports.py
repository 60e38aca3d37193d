"""Ports for processes that are started soon."""

from __future__ import annotations

import os
import socket

_PORTS = (20000, 32700)
"""Below the range the kernel hands out by itself, so that no outgoing connection takes the port meanwhile."""


def free_port() -> int:
    """Return a port that can be bound now, at random: processes that ask at the same time must not all find the same."""
    low, high = _PORTS
    while True:
        port = low + int.from_bytes(os.urandom(4), "big") % (high - low)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("", port))
                return port
            except OSError:
                continue
