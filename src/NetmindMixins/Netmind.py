"""`from NetmindMixins.Netmind import nmp, …`, as scripts for NetMind Power have it."""

from shoal.compat import netmind as _netmind
from shoal.compat.netmind import *  # noqa: F403


def __getattr__(name: str) -> object:
    return getattr(_netmind, name)
