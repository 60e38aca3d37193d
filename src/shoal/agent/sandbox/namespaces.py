"""Enters the sandbox of another process: its namespaces, with no more privileges than it has. Uses system calls by ctypes."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from shoal.agent.sandbox import seccomp
from shoal.agent.workers.parent import prctl

PID = 0x20000000
_KINDS = {
    "user": 0x10000000,
    "mnt": 0x00020000,
    "pid": PID,
    "net": 0x40000000,
    "ipc": 0x08000000,
    "uts": 0x04000000,
    "cgroup": 0x02000000,
}
_MS_REC, _MS_SLAVE = 1 << 14, 1 << 19
_PRIVILEGES = ("Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 4, 24, 38, 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION_3 = 0x20080522


def differing(pid: int) -> int:
    """Return the kinds of namespaces in which that process differs from us, as flags for `enter`."""
    flags = 0
    for name, flag in _KINDS.items():
        ours, theirs = (os.stat(f"/proc/{who}/ns/{name}") for who in ("self", pid))  # noqa: PTH116
        if (ours.st_dev, ours.st_ino) != (theirs.st_dev, theirs.st_ino):
            flags |= flag
    return flags


def own_mounts() -> None:
    """Give this thread and its children a mount namespace: their mounts are invisible to others and vanish with the process."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_KINDS["mnt"]) or libc.mount(b"none", b"/", None, _MS_REC | _MS_SLAVE, None):
        number = ctypes.get_errno()
        raise OSError(number, f"cannot create a mount namespace: {os.strerror(number)}")


def enter(pid: int, flags: int) -> None:
    """Enter the namespaces of a process. A pid namespace applies to our future children, not to this process itself."""
    if not flags:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if flags & _KINDS["user"] and os.geteuid() == 0:
        os.setgroups([])  # not possible any more inside
    process = os.pidfd_open(pid)
    try:
        if libc.setns(process, flags):
            number = ctypes.get_errno()
            raise OSError(number, f"cannot enter the sandbox: {os.strerror(number)}")
    finally:
        os.close(process)


def privileges(who: int | str) -> dict[str, str]:
    """Return the privileges of a process according to the kernel: users, groups, capabilities, filters."""
    lines = Path(f"/proc/{who}/status").read_text().splitlines()
    pairs = (line.partition(":") for line in lines)
    return {name: value.strip() for name, _, value in pairs if name in _PRIVILEGES}


def lower_to(pid: int, *, debugging: bool = False) -> None:
    """Drop to the privileges of a process. Raise PermissionError if ours still differ from its privileges afterwards.

    `debugging` is that of the process's system call filter.
    """
    wanted = privileges(pid)
    if wanted["NoNewPrivs"] == "1":
        prctl(_PR_SET_NO_NEW_PRIVS, 1)
    bounding, ours = int(wanted["CapBnd"], 16), int(privileges("self")["CapBnd"], 16)
    for capability in range(64):
        if ours & ~bounding & (1 << capability):
            prctl(_PR_CAPBSET_DROP, capability)
    prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    if privileges("self")["Uid"] != wanted["Uid"]:
        group, user = int(wanted["Gid"].split()[0]), int(wanted["Uid"].split()[0])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
    _set_capabilities(*(int(wanted[name], 16) for name in ("CapEff", "CapPrm", "CapInh")))
    # The kernel clears this flag when privileges change; a newly started program would have it.
    prctl(_PR_SET_DUMPABLE, 1)
    if wanted["Seccomp"] == "2" and privileges("self")["Seccomp"] == "0":
        seccomp.apply(debugging=debugging)
    found = privileges("self")
    if found != wanted:
        wrong = [f"{name} {found.get(name)} for {value}" for name, value in wanted.items() if found.get(name) != value]
        raise PermissionError(f"privileges differ from those of the sandbox: {', '.join(wrong)}")


def _set_capabilities(effective: int, permitted: int, inheritable: int) -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    words = [sets >> shift & 0xFFFFFFFF for shift in (0, 32) for sets in (effective, permitted, inheritable)]
    ctypes.CDLL(None, use_errno=True).capset(header, (ctypes.c_uint32 * 6)(*words))
