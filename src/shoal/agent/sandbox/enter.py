"""The last steps into a sandbox, run as a file by `python -I -S`: cgroups, mounts, user, then bubblewrap.

Built-in modules only.

Usage: `enter.py FILE ARGV…`, where FILE is a marshalled dict (importing json takes longer than all the rest): {entries, stage, hosts, uid, limits, bwrap, landlock}. The sequence matters:
cgroups and mounts need root, so the user changes after them.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import resource
import sys

_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_LIMITS = {"core": resource.RLIMIT_CORE, "fsize": resource.RLIMIT_FSIZE, "nofile": resource.RLIMIT_NOFILE}
_LIMITS |= {"nproc": resource.RLIMIT_NPROC}


def main(order_file: str, argv: list[str]) -> None:
    with open(order_file, "rb") as file:  # noqa: PTH123
        task = marshal.load(file)  # noqa: S302
    # Import now, because the sandbox's user may not be able to read this folder.
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    import landlock  # type: ignore[import-not-found]
    import seccomp  # type: ignore[import-not-found]

    for entry in task["entries"]:
        with open(entry, "w") as file:  # noqa: PTH123
            file.write("0")
    if task["stage"]:
        _stage(task["stage"], task["hosts"])
    for name, value in task["limits"].items():
        hard = resource.getrlimit(_LIMITS[name])[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(_LIMITS[name], (value, value))
    if task["uid"] is not None:
        _become(task["uid"])
    _libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if task["bwrap"]:
        argv = [*task["bwrap"], "--seccomp", str(_readable(seccomp.program())), "--", *argv]
    else:
        os.chdir(task["landlock"]["home"])
        landlock.restrict(task["landlock"]["read"], task["landlock"]["write"])
        seccomp.apply()
    os.execv(argv[0], argv)  # noqa: S606  execvp would import more modules


def _stage(stage: str, hosts: list[str]) -> None:
    """Mount paths that only root can reach below `stage`, in a private mount namespace, for the sandbox's user."""
    libc = _libc()
    _check(libc.unshare(_CLONE_NEWNS), "unshare")
    _check(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "mount")
    _check(libc.mount(b"tmpfs", stage.encode(), b"tmpfs", 0, b"mode=755,size=1m"), stage)
    for number, host in enumerate(hosts):
        place = f"{stage}/{number}"
        if os.path.isdir(host):  # noqa: PTH112
            os.mkdir(place)  # noqa: PTH102
        else:
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o644))
        _check(libc.mount(os.fsencode(host), place.encode(), None, _MS_BIND | _MS_REC, None), host)


def _become(uid: int) -> None:
    """Drop all capabilities and become this user and the group of the same number."""
    for capability in range(64):
        _libc().prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    for fd in range(1024):
        _give_pipe(fd, uid)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _give_pipe(fd: int, uid: int) -> None:
    """Give an inherited pipe to the user; otherwise programs could not open it again as /dev/stdout."""
    try:
        if os.fstat(fd).st_mode & 0o170000 == 0o010000:
            os.fchown(fd, uid, uid)
    except OSError:
        pass


def _readable(data: bytes) -> int:
    """Return a descriptor from which the program we become can read the data."""
    read, write = os.pipe()
    os.set_inheritable(read, True)
    os.write(write, data)
    os.close(write)
    return read


def _check(answer: int, what: str) -> None:
    if answer:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2:])
    except OSError as error:
        sys.exit(f"the sandbox cannot be entered: {error}")
