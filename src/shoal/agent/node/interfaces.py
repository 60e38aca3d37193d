"""Finds the network interface that leads to another machine by asking the kernel, so that users need not configure it."""

from __future__ import annotations

import fcntl
import socket
from contextlib import suppress
from pathlib import Path

_SIOCGIFADDR = 0x8915
_AT = slice(20, 24)
"""Position of the IPv4 address in the kernel's answer (struct ifreq)."""


def interface_to(address: str) -> str | None:
    """Return the name of the interface that this machine uses to reach an address; None if unreachable or not over IPv4."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
            ours = socket.inet_aton(probe.getsockname()[0])
        except OSError:
            return None
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(probe, _SIOCGIFADDR, name.encode()[:15].ljust(256, b"\0"))
            except OSError:  # it has no address
                continue
            if found[_AT] == ours:
                return name
    return None


def network_cards(root: Path = Path("/sys/class/net")) -> list[str]:
    """Return the network interfaces that are up and belong to hardware, not bridges, tunnels and pairs of containers."""
    found = []
    with suppress(OSError):
        for card in sorted(root.iterdir()):
            with suppress(OSError):
                if (card / "device").exists() and (card / "operstate").read_text().strip() == "up":
                    found.append(card.name)
    return found
