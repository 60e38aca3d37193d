"""Changes the command line and environment that /proc shows for a forked process.

The kernel shows the memory in which it placed them when the program was started. The prefork parent is started with spare room
there, so that its forks can show their own: `ps` names the script, and recovery finds the marks of its node.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOM = "_ROOM"
"""Name of the variable that reserves room for an environment."""
_ARGV_ROOM, _ENV_ROOM = 4 << 10, 64 << 10
_ARG_START = 45
"""Index of arg_start in /proc/self/stat, counted from the state; arg_end, env_start and env_end follow."""


def roomy(argv: list[str], env: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the command line and environment with room added, for a program whose forks call `show`."""
    return [*argv, "." * _ARGV_ROOM], {**env, ROOM: "." * _ENV_ROOM}


def initial_env() -> dict[str, str]:
    """Return the environment this program was started with, without the reserved room."""
    pairs = (os.fsdecode(entry).partition("=") for entry in Path("/proc/self/environ").read_bytes().split(b"\0"))
    return {name: value for name, mark, value in pairs if mark and name != ROOM}


def set_env(env: Mapping[str, str]) -> None:
    """Replace the environment, for Python and C alike; afterwards nothing refers to the memory of the initial one."""
    os.environ.clear()
    os.environ.update(env)


def show(argv: Iterable[str], env: Mapping[str, str], first: Iterable[str] = ()) -> None:
    """Make /proc show these as far as there is room, the variables in `first` before others. Call `set_env` before."""
    stat = Path("/proc/self/stat").read_bytes()
    bounds = stat[stat.rfind(b")") + 2 :].split()[_ARG_START : _ARG_START + 4]
    arg_start, arg_end, env_start, env_end = map(int, bounds)
    _write(env_start, env_end, _block(env, list(first), env_end - env_start), b"\0")
    # If the last byte is not NUL, the kernel shows a single string that ends at the first NUL.
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
