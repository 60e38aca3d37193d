"""Landlock: restricts this process to the paths it names, on machines where namespaces are not available.

Built-in modules only, because enter.py imports it.
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
"""All rights on files, by Landlock version."""
_TCP = 3
"""Rights to bind and connect TCP ports, known since version 4."""
_SCOPES = 3
"""Scopes that block abstract sockets and signals to processes outside, known since version 6."""


def version() -> int:
    """Return the kernel's Landlock version; 0 if it has none."""
    return max(0, int(_libc().syscall(_CREATE, None, 0, _VERSION)))


def restrict(read: list[str], write: list[str]) -> None:
    """Restrict this process and its descendants for good; TCP is blocked too if the kernel can. Needs no_new_privs."""
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
