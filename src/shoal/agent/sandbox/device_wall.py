"""Second wall around device files: processes in the cgroup of a sandbox can open only the usual files and those of its slots.

The first wall is the sandbox's /dev, which has no other files. This one also holds if a process creates or is handed another
device file. cgroup version 1 has a controller for it; version 2 asks a small eBPF program, which the kernel keeps as long as the
cgroup exists.
"""

from __future__ import annotations

import ctypes
import os
import platform
import stat
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_SYSCALL = {"x86_64": 321, "aarch64": 280}
_PROG_LOAD, _PROG_ATTACH = 5, 8
_PROG_TYPE_CGROUP_DEVICE, _CGROUP_DEVICE, _ALLOW_MULTI = 15, 6, 2
_BLOCK, _CHAR = 1, 2
_MKNOD = 1
"""Access that is allowed for every file: creating one opens nothing."""
_ATTR_BYTES = 128


class Rule(NamedTuple):
    """Device files that may be opened. `minor` None: all of this major number."""

    kind: str
    """'c' or 'b'."""
    major: int
    minor: int | None

    @property
    def line(self) -> str:
        """This rule as cgroup version 1 writes it."""
        return f"{self.kind} {self.major}:{'*' if self.minor is None else self.minor} rwm"


USUAL = (
    *(Rule("c", 1, minor) for minor in (3, 5, 7, 8, 9)),  # null, zero, full, random, urandom
    *(Rule("c", 5, minor) for minor in (0, 1, 2)),  # tty, console, ptmx
    Rule("c", 136, None),  # terminals
)


def rules(files: Iterable[str]) -> list[Rule]:
    """Return the rules for these device files and folders of them, after the usual ones; those that do not exist are ignored."""
    found = dict.fromkeys(USUAL)
    for name in files:
        path = Path(name)
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            try:
                status = file.stat()
            except OSError:
                continue
            kind = "c" if stat.S_ISCHR(status.st_mode) else "b" if stat.S_ISBLK(status.st_mode) else None
            if kind is not None:
                found[Rule(kind, os.major(status.st_rdev), os.minor(status.st_rdev))] = None
    return list(found)


def limit_v1(folder: Path, allowed: Iterable[Rule]) -> None:
    """Limit a cgroup of version 1; `folder` is in the hierarchy of the `devices` controller."""
    (folder / "devices.deny").write_text("a")
    for rule in allowed:
        (folder / "devices.allow").write_text(rule.line)


def limit_v2(folder: Path, allowed: Iterable[Rule]) -> None:
    """Limit a cgroup of version 2; raise OSError if this process may not load eBPF programs."""
    code = program(allowed)
    instructions, licence = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"Apache-2.0")
    where, about = ctypes.addressof(instructions), ctypes.addressof(licence)
    loaded = _bpf(_PROG_LOAD, struct.pack("=IIQQ", _PROG_TYPE_CGROUP_DEVICE, len(code) // 8, where, about))
    try:
        group = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Several programs may stand: those of systemd or a container stay in force, and a file must pass all of them.
            _bpf(_PROG_ATTACH, struct.pack("=IIII", group, loaded, _CGROUP_DEVICE, _ALLOW_MULTI))
        finally:
            os.close(group)
    finally:
        os.close(loaded)


def program(allowed: Iterable[Rule]) -> bytes:
    """Return the eBPF program that returns 1 for accesses that a rule allows, and 0 for others."""
    code = [
        _instruction(0x61, 0x12, 0, 0),  # r2 = access and type
        _instruction(0x61, 0x13, 0, 0),
        _instruction(0x57, 0x02, 0, 0xFFFF),  # r2 &= 0xffff: the type
        _instruction(0x77, 0x03, 0, 16),  # r3 >>= 16: the access
        _instruction(0x61, 0x14, 4, 0),  # r4 = major
        _instruction(0x61, 0x15, 8, 0),  # r5 = minor
        _instruction(0x55, 0x03, 2, _MKNOD),
        *_RETURN_1,
    ]
    for rule in allowed:
        tests = [(0x02, _CHAR if rule.kind == "c" else _BLOCK), (0x04, rule.major)]
        tests += [] if rule.minor is None else [(0x05, rule.minor)]
        for place, (register, value) in enumerate(tests):
            code.append(_instruction(0x55, register, len(tests) - place + 1, value))  # if different: the next rule
        code += _RETURN_1
    return b"".join([*code, _instruction(0xB7, 0, 0, 0), _instruction(0x95, 0, 0, 0)])


def _instruction(operation: int, registers: int, offset: int, value: int) -> bytes:
    return struct.pack("=BBhi", operation, registers, offset, value)


_RETURN_1 = [_instruction(0xB7, 0, 0, 1), _instruction(0x95, 0, 0, 0)]


def _bpf(command: int, attributes: bytes) -> int:
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(f"eBPF is not known for {platform.machine()}")
    buffer = ctypes.create_string_buffer(attributes.ljust(_ATTR_BYTES, b"\0"), _ATTR_BYTES)
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(ctypes.c_long(number), ctypes.c_int(command), buffer, ctypes.c_uint(_ATTR_BYTES)))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
