"""Which addresses are the world's, and which somebody's own: those users may not send our connections to."""

from __future__ import annotations

import ipaddress

_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_ALSO_INSIDE = tuple(
    ipaddress.ip_network(text)
    for text in ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "2001::/23", "2002::/16", "3fff::/20")
)
"""What some Python versions hold global though it is not (the metadata of clouds, too), and Azure's inner services."""


def is_public(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip in _NAT64:
            return is_public(str(ipaddress.IPv4Address(ip.packed[-4:])))
        if ip not in _UNICAST:
            return False
    inside = any(ip in network for network in _ALSO_INSIDE)
    return ip.is_global and not (inside or ip.is_multicast or ip.is_reserved)
