"""One module per kind of trouble. Loading them registers their rules."""

from __future__ import annotations

from importlib import import_module

MODULES = (
    "sdk",
    "netmind",
    "workers",
    "collectives",
    "devices",
    "paths",
    "files",
    "command_line",
    "unattended",
    "secrets",
)


def load() -> None:
    for name in MODULES:
        import_module(f"{__name__}.{name}")
