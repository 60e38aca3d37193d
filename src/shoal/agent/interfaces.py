"""By which network interface this machine reaches another: asked of the kernel, so that nobody has to name one."""

from __future__ import annotations

import fcntl
import socket

_SIOCGIFADDR = 0x8915
_AT = slice(20, 24)
"""Where the kernel's answer holds the address."""


def interface_to(address: str) -> str | None:
    """The one with our address on the way there; None if there is none, or the way is not IPv4."""
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
