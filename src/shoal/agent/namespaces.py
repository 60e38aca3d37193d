"""Into the sandbox of another process: its namespaces, and no more privileges than it has. Linux's own calls, through ctypes."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from shoal.agent.inner import prctl

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
    """The kinds of namespaces in which that process is not where we are, as flags for `enter`."""
    flags = 0
    for name, flag in _KINDS.items():
        ours, theirs = (os.stat(f"/proc/{who}/ns/{name}") for who in ("self", pid))  # noqa: PTH116
        if (ours.st_dev, ours.st_ino) != (theirs.st_dev, theirs.st_ino):
            flags |= flag
    return flags


def own_mounts() -> None:
    """From here on what this thread and those it starts mount is seen by nobody else, and is gone with us, however we end."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_KINDS["mnt"]) or libc.mount(b"none", b"/", None, _MS_REC | _MS_SLAVE, None):
        number = ctypes.get_errno()
        raise OSError(number, f"no mounts of our own: {os.strerror(number)}")


def enter(pid: int, flags: int) -> None:
    """Join them. A pid namespace is entered by the children from now on, not by this process itself."""
    if not flags:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(pid)
    try:
        if libc.setns(process, flags):
            number = ctypes.get_errno()
            raise OSError(number, f"cannot enter the sandbox: {os.strerror(number)}")
    finally:
        os.close(process)


def privileges(who: int | str) -> dict[str, str]:
    """What a process may do, as the kernel tells it: users, groups, capabilities, filters."""
    lines = Path(f"/proc/{who}/status").read_text().splitlines()
    pairs = (line.partition(":") for line in lines)
    return {name: value.strip() for name, _, value in pairs if name in _PRIVILEGES}


def lower_to(pid: int) -> None:
    """Give up all that process has not. Raises PermissionError if we could still do something it cannot, or the reverse."""
    wanted = privileges(pid)
    if wanted["NoNewPrivs"] == "1":
        prctl(_PR_SET_NO_NEW_PRIVS, 1)
    bounding, ours = int(wanted["CapBnd"], 16), int(privileges("self")["CapBnd"], 16)
    for capability in range(64):
        if ours & ~bounding & (1 << capability):
            prctl(_PR_CAPBSET_DROP, capability)
    prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    _set_capabilities(*(int(wanted[name], 16) for name in ("CapEff", "CapPrm", "CapInh")))
    # The kernel takes it away with a change of privileges, and a started program gets it back.
    prctl(_PR_SET_DUMPABLE, 1)
    found = privileges("self")
    if found != wanted:
        wrong = [f"{name} {found.get(name)} for {value}" for name, value in wanted.items() if found.get(name) != value]
        raise PermissionError(f"other privileges than in the sandbox: {', '.join(wrong)}")


def _set_capabilities(effective: int, permitted: int, inheritable: int) -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    words = [sets >> shift & 0xFFFFFFFF for shift in (0, 32) for sets in (effective, permitted, inheritable)]
    ctypes.CDLL(None, use_errno=True).capset(header, (ctypes.c_uint32 * 6)(*words))
