"""Free ports for processes that are about to start."""

from __future__ import annotations

import os
import socket

_PORTS = (20000, 32700)
"""Range below the kernel's ephemeral ports, so that no outgoing connection takes the port in the meantime."""


def free_port() -> int:
    """Return a random port that can be bound now. Random, so that processes asking at the same time get different ports."""
    low, high = _PORTS
    while True:
        port = low + int.from_bytes(os.urandom(4), "big") % (high - low)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("", port))
                return port
            except OSError:
                continue
