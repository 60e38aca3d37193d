"""What the machine sees of a process that was forked instead of started: the command line and environment in /proc.

The kernel shows the memory it laid them out in when the program was started. A nursery is started with room to spare there,
so that its forks can show what is theirs: `ps` names the script, and a salvage finds the marks of its node.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOM = "_ROOM"
"""The variable that takes up the room for an environment."""
_ARGV_ROOM, _ENV_ROOM = 4 << 10, 64 << 10
_ARG_START = 45
"""In /proc/self/stat, counted from the state: arg_start, arg_end, env_start, env_end."""


def roomy(argv: list[str], env: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """A command line and environment to start a program with that shall show others later."""
    return [*argv, "." * _ARGV_ROOM], {**env, ROOM: "." * _ENV_ROOM}


def initial_env() -> dict[str, str]:
    """The environment this program was started with, without the room."""
    pairs = (os.fsdecode(entry).partition("=") for entry in Path("/proc/self/environ").read_bytes().split(b"\0"))
    return {name: value for name, mark, value in pairs if mark and name != ROOM}


def set_env(env: Mapping[str, str]) -> None:
    """Make this the environment, for Python and C alike; nothing refers to the memory of the first one afterwards."""
    os.environ.clear()
    os.environ.update(env)


def show(argv: Iterable[str], env: Mapping[str, str], first: Iterable[str] = ()) -> None:
    """Let /proc show these, as far as there is room; the variables named in `first` for certain. After `set_env` only."""
    stat = Path("/proc/self/stat").read_bytes()
    bounds = stat[stat.rfind(b")") + 2 :].split()[_ARG_START : _ARG_START + 4]
    arg_start, arg_end, env_start, env_end = map(int, bounds)
    _write(env_start, env_end, _block(env, list(first), env_end - env_start), b"\0")
    # A last byte that is not NUL tells the kernel that there is one text here, which ends at its own NUL.
    title = os.fsencode(" ".join(argv))[: arg_end - arg_start - 2]
    _write(arg_start, arg_end, title + b"\0", b".")


def _block(env: Mapping[str, str], first: list[str], size: int) -> bytes:
    block = b""
    for name in sorted(env, key=lambda name: name not in first):
        entry = os.fsencode(f"{name}={env[name]}") + b"\0"
        if len(block) + len(entry) <= size:
            block += entry
    return block


def _write(start: int, end: int, data: bytes, fill: bytes) -> None:
    if start and end - start >= len(data):
        ctypes.memmove(start, data.ljust(end - start, fill), end - start)
