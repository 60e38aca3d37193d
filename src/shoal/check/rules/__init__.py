"""Rules, one module per kind of problem. Loading the modules registers their rules."""

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
    "versions",
)


def load() -> None:
    for name in MODULES:
        import_module(f"{__name__}.{name}")
