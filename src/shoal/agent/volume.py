"""Where a lease's person keeps files: a file system of its own in one file, which cannot outgrow its size; a plain folder where that
cannot be had. Wiped, nothing of it can be read from the disk any more.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)

_ZEROS = bytes(1 << 20)
_TOOL_S = 120
_LOCK = "lock"
_PATIENCE_S = 30.0
KEEP_ABANDONED_S = 14 * 86400.0
_LEAST = 16 << 20
"""Bytes below which a file system is mostly its own tables."""


class Volume:
    """`folder` is ours alone; `path` is what the person sees, once it is open."""

    def __init__(self, folder: Path, size: int):
        self._folder, self._size = folder, max(size, _LEAST)
        self.image, self.path = folder / "volume.img", folder / "volume"
        self._lock: int | None = None
        self.is_limited = False
        """Whether it has a size it cannot outgrow."""

    def open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = self._lock or _locked(self._folder / _LOCK, _PATIENCE_S)
        self.path.mkdir(exist_ok=True, mode=0o700)
        if self.path.is_mount():
            self.is_limited = True
        elif os.geteuid() == 0 and not any(self.path.iterdir()):
            self.is_limited = self._mount()

    def close(self) -> None:
        """Nothing is lost: it opens again as it is."""
        if self.path.is_mount():
            _tool("umount", str(self.path))
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def wipe(self) -> None:
        """Overwritten, then removed. What a disk keeps aside by itself is beyond us; that is what disk encryption is for."""
        self.close()
        if self.image.exists():
            overwrite(self.image)
        for path in walk(self.path):
            if not path.is_symlink():
                with suppress(OSError):
                    path.chmod(0o700)  # who is not root is bound by modes too
                    if path.is_file():
                        overwrite(path)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _mount(self) -> bool:
        """Whether it works here."""
        is_new = not self.image.exists()
        try:
            if is_new:
                fd = os.open(self.image, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                os.ftruncate(fd, self._size)
                os.close(fd)
                _tool("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=1,root_owner=0:0", str(self.image))
            _tool("mount", "-o", "loop,nosuid,nodev,noatime", str(self.image), str(self.path))
        except (OSError, subprocess.SubprocessError) as error:
            logger.info("no file system of its own for a lease: %s", error)
            if is_new:
                self.image.unlink(missing_ok=True)
                return False
            raise
        with suppress(OSError):
            (self.path / "lost+found").rmdir()
        return True


def wipe_abandoned(folder: Path, unused_s: float = KEEP_ABANDONED_S) -> None:
    """Of leases whose agent was lost and that nobody came back to, in all that time."""
    for lock in folder.glob(f"*/{_LOCK}"):
        with suppress(OSError):
            if time.time() - lock.stat().st_mtime > unused_s:
                volume = Volume(lock.parent, 0)
                volume._lock = _locked(lock, 0.0)
                logger.warning("an abandoned volume is wiped: %s", lock.parent)
                volume.wipe()


def own(path: Path, uid: int) -> None:
    """All below belongs to this user and its group; links are not followed."""
    for found in walk(path):
        if found.lstat().st_uid != uid:  # else it would lose what its mode says of users
            os.chown(found, uid, uid, follow_symlinks=False)


def walk(root: Path) -> Iterator[Path]:
    """All of a tree in the order of names, links not followed. A folder comes before it is read: what is done to it then counts."""
    ahead = [root]
    while ahead:
        path = ahead.pop()
        yield path
        if path.is_dir() and not path.is_symlink():
            ahead += [path / name for name in sorted(os.listdir(path), reverse=True)]  # noqa: PTH208


def overwrite(path: Path) -> None:
    """With zeros wherever it has blocks on the disk; durable on return."""
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for start, end in _extents(fd):
            at = start
            while at < end:
                at += os.pwrite(fd, _ZEROS[: end - at], at)
        os.fsync(fd)
    finally:
        os.close(fd)


def _locked(path: Path, patience_s: float) -> int:
    """Only one agent at a time may have it mounted: two would ruin it. One that is leaving is waited for."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.utime(fd)
            return fd
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(fd)
                raise OSError(f"another agent has {path.parent} open") from None
            time.sleep(0.1)


def _extents(fd: int) -> Iterator[tuple[int, int]]:
    """(start, end) of what is really stored: a sparse file of a terabyte may hold a few blocks."""
    size, at = os.fstat(fd).st_size, 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:  # nothing further
            return
        at = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, at


def dial(path: Path) -> str:
    """What to connect to for the socket at `path`, which a stranger may have put there: never where a link of theirs leads.

    The open descriptor stays with the process; the name holds as long as it.
    """
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        os.close(fd)
        raise ConnectionRefusedError(f"{path.name} is no socket")
    return f"/proc/self/fd/{fd}"


def _tool(*argv: str) -> None:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=_TOOL_S, check=False, env={**os.environ, "PATH": path}
    )
    if done.returncode:
        raise OSError(f"{argv[0]}: {(done.stderr or done.stdout).strip()}")
