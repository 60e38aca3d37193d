"""Seccomp filter (a BPF program) that denies system calls which a person in a sandbox does not need but an attacker could use.

Built-in modules only, because enter.py imports it before any package can be imported.
"""

from __future__ import annotations

import ctypes
import os
import struct

_LOAD, _JUMP_EQ, _JUMP_GE, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _ARGUMENT = 0, 4, 16
_KILL, _ALLOW = 0x80000000, 0x7FFF0000
_EPERM, _ENOSYS = 0x00050000 | 1, 0x00050000 | 38
_X32 = 0x40000000
_NEW_NAMESPACES = 0x7E020080
_FAMILIES = (1, 2, 10, 16)
"""Allowed families: AF_UNIX, AF_INET, AF_INET6, and AF_NETLINK for the list of interfaces only."""
_NETLINK, _SOCK_TYPE, _SOCK_RAW, _SOCK_PACKET = 16, 0xF, 3, 10
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C

_ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SINCE_2019 = {
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "statmount": 457,
    "listmount": 458,
}
"""Numbers of newer system calls, which are the same on every architecture."""
_DENIED = {
    "x86_64": _SINCE_2019
    | {
        "ptrace": 101,
        "syslog": 103,
        "personality": 135,
        "pivot_root": 155,
        "adjtimex": 159,
        "chroot": 161,
        "acct": 163,
        "settimeofday": 164,
        "mount": 165,
        "umount2": 166,
        "swapon": 167,
        "swapoff": 168,
        "reboot": 169,
        "sethostname": 170,
        "setdomainname": 171,
        "iopl": 172,
        "ioperm": 173,
        "init_module": 175,
        "delete_module": 176,
        "quotactl": 179,
        "clock_settime": 227,
        "kexec_load": 246,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "migrate_pages": 256,
        "unshare": 272,
        "move_pages": 279,
        "perf_event_open": 298,
        "fanotify_init": 300,
        "name_to_handle_at": 303,
        "open_by_handle_at": 304,
        "clock_adjtime": 305,
        "setns": 308,
        "process_vm_readv": 310,
        "process_vm_writev": 311,
        "kcmp": 312,
        "finit_module": 313,
        "kexec_file_load": 320,
        "bpf": 321,
        "userfaultfd": 323,
    },
    "aarch64": _SINCE_2019
    | {
        "umount2": 39,
        "mount": 40,
        "pivot_root": 41,
        "chroot": 51,
        "quotactl": 60,
        "acct": 89,
        "personality": 92,
        "unshare": 97,
        "kexec_load": 104,
        "init_module": 105,
        "delete_module": 106,
        "clock_settime": 112,
        "syslog": 116,
        "ptrace": 117,
        "reboot": 142,
        "sethostname": 161,
        "setdomainname": 162,
        "settimeofday": 170,
        "adjtimex": 171,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "swapon": 224,
        "swapoff": 225,
        "migrate_pages": 238,
        "move_pages": 239,
        "perf_event_open": 241,
        "fanotify_init": 262,
        "name_to_handle_at": 264,
        "open_by_handle_at": 265,
        "clock_adjtime": 266,
        "setns": 268,
        "process_vm_readv": 270,
        "process_vm_writev": 271,
        "kcmp": 272,
        "finit_module": 273,
        "bpf": 280,
        "userfaultfd": 282,
        "kexec_file_load": 294,
    },
}
_DEBUGGING = ("ptrace", "process_vm_readv", "process_vm_writev", "perf_event_open", "kcmp", "personality")
_CLONE = {"x86_64": 56, "aarch64": 220}
_SOCKET = {"x86_64": 41, "aarch64": 198}
_IOCTL = {"x86_64": 16, "aarch64": 29}
_CLONE3 = 435

Instruction = tuple[int, int, int, int]
"""One BPF instruction: code, jump if true, jump if false, constant."""


def is_known() -> bool:
    """Return whether there is a filter for this machine's architecture."""
    return os.uname().machine in _ARCHES


def program(*, debugging: bool = False) -> bytes:
    """Return the filter program for `bwrap --seccomp` and for `apply`.

    `debugging`: allow debuggers and profilers, for jobs that see the machine's files anyway.
    """
    machine = os.uname().machine
    code: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH),
        (_JUMP_EQ, 1, 0, _ARCHES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_GE, 0, 1, _X32),
        (_RETURN, 0, 0, _ENOSYS),
        # Without clone3 the C library uses clone, whose flags the filter can check.
        *_if_call(_CLONE3, [(_RETURN, 0, 0, _ENOSYS)]),
        *_if_call(_CLONE[machine], _clone()),
        *_if_call(_SOCKET[machine], _socket()),
        *_if_call(_IOCTL[machine], _ioctl()),
    ]
    for number in sorted(n for name, n in _DENIED[machine].items() if not (debugging and name in _DEBUGGING)):
        code += _if_call(number, [(_RETURN, 0, 0, _EPERM)])
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *one) for one in code)


def apply(*, debugging: bool = False) -> None:
    """Apply the filter to this process and its descendants for good. Needs no_new_privs."""
    code = program(debugging=debugging)
    held = ctypes.create_string_buffer(code, len(code))
    head = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(22, 2, ctypes.create_string_buffer(head, len(head)), 0, 0):
        raise OSError(ctypes.get_errno(), "the system call filter was refused")


def _if_call(number: int, then: list[Instruction]) -> list[Instruction]:
    """Return instructions that run `then` for this system call. `then` must return; the accumulator holds the call's number."""
    return [(_JUMP_EQ, 0, len(then), number), *then]


def _clone() -> list[Instruction]:
    return [
        (_LOAD, 0, 0, _ARGUMENT),
        (_JUMP_SET, 0, 1, _NEW_NAMESPACES),
        (_RETURN, 0, 0, _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _socket() -> list[Instruction]:
    """Return instructions that allow the families in _FAMILIES, no raw sockets, and only NETLINK_ROUTE (protocol 0)."""
    families: list[Instruction] = [(_LOAD, 0, 0, _ARGUMENT)]
    for place, family in enumerate(_FAMILIES):
        families.append((_JUMP_EQ, len(_FAMILIES) - place, 0, family))
    return [
        *families,
        (_RETURN, 0, 0, _EPERM),
        (_JUMP_EQ, 0, 3, _NETLINK),
        (_LOAD, 0, 0, _ARGUMENT + 16),
        (_JUMP_EQ, 6, 0, 0),
        (_RETURN, 0, 0, _EPERM),
        (_LOAD, 0, 0, _ARGUMENT + 8),
        (0x54, 0, 0, _SOCK_TYPE),
        (_JUMP_EQ, 1, 0, _SOCK_RAW),
        (_JUMP_EQ, 0, 1, _SOCK_PACKET),
        (_RETURN, 0, 0, _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _ioctl() -> list[Instruction]:
    """Return instructions that deny TIOCSTI and TIOCLINUX, which can type into another terminal."""
    return [
        (_LOAD, 0, 0, _ARGUMENT + 8),
        (_JUMP_EQ, 1, 0, _TIOCSTI),
        (_JUMP_EQ, 0, 1, _TIOCLINUX),
        (_RETURN, 0, 0, _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
