"""Tell public IP addresses from internal ones. Connections made on behalf of users may go to public addresses only."""

from __future__ import annotations

import ipaddress

_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_ALSO_INSIDE = tuple(
    ipaddress.ip_network(text)
    for text in ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "2001::/23", "2002::/16", "3fff::/20")
)
"""Ranges that some Python versions wrongly report as global (192.0.0.0/24 holds a cloud's metadata service), and the address of
Azure's internal services."""


def is_public(address: str) -> bool:
    """Return whether an address is on the public internet: not private, reserved, multicast or internal to a cloud."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip in _NAT64:
            return is_public(str(ipaddress.IPv4Address(ip.packed[-4:])))
        if ip not in _UNICAST:
            return False
    inside = any(ip in network for network in _ALSO_INSIDE)
    return ip.is_global and not (inside or ip.is_multicast or ip.is_reserved)


def network_of(address: str) -> str:
    """Return what counts as one address: an IPv4 address, or the 64-bit network that one owner of IPv6 addresses has."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return address
    return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False).network_address)
