"""The kernel's Landlock: a process that may reach only the folders it names, where there are no namespaces to be had.

Built-in modules only, as confined.py imports it.
"""

from __future__ import annotations

import ctypes
import os
import struct

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION = 1
_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14 | 1 << 15
_FILESYSTEM = (0, (1 << 13) - 1, (1 << 14) - 1, (1 << 15) - 1, (1 << 15) - 1, (1 << 16) - 1)
"""All rights on files, by version."""
_TCP = 3
"""Bind and connect, from version 4 on."""
_SCOPES = 3
"""Abstract sockets and signals of processes outside, from version 6 on."""


def version() -> int:
    """0 where the kernel has none of it."""
    return max(0, int(_libc().syscall(_CREATE, None, 0, _VERSION)))


def restrict(read: list[str], write: list[str]) -> None:
    """This process and all it starts, for ever. It must have no_new_privs. Where the kernel can, no TCP either."""
    libc, known = _libc(), version()
    rights = _FILESYSTEM[min(known, len(_FILESYSTEM) - 1)]
    head = struct.pack("QQQ", rights, _TCP if known >= 4 else 0, _SCOPES if known >= 6 else 0)
    head = head[: 24 if known >= 6 else 16 if known >= 4 else 8]
    rules = _checked(libc.syscall(_CREATE, head, len(head), 0), "landlock")
    for path, allowed in [(p, _READ) for p in read] + [(p, rights) for p in write]:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except (FileNotFoundError, PermissionError):
            continue
        if not os.path.isdir(path):  # noqa: PTH112
            allowed &= _OF_FILES
        _checked(libc.syscall(_ADD, rules, _PATH_BENEATH, struct.pack("=Qi", allowed & rights, fd), 0), path)
        os.close(fd)
    _checked(libc.syscall(_RESTRICT, rules, 0), "landlock")


def _checked(answer: int, what: str) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return answer


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
