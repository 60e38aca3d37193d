"""The volume of a lease: a file system in an image file, which limits its size, or a plain folder where mounting is impossible.

A volume with a key is encrypted (see `encryption`): once the server has destroyed the key, nothing on the disk can be read,
whether or not this machine was there at the end. A volume is also overwritten before it is deleted.
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

from shoal.agent.lease.encryption import encrypted_folder, forget_key

logger = logging.getLogger(__name__)

_ZEROS = bytes(1 << 20)
_TOOL_S = 120
_LOCK, _FILES = "lock", "files"
_PATIENCE_S = 30.0
KEEP_ABANDONED_S = 14 * 86400.0
_LEAST = 16 << 20
"""Smallest size in bytes; a smaller file system would consist mostly of its own tables."""


class Volume:
    """A lease's files. `folder` belongs to the agent alone; `path` is what the person sees while the volume is open."""

    def __init__(self, folder: Path, size: int, key: bytes | None = None):
        self._folder, self._size, self._key = folder, max(size, _LEAST), key
        self.image, self.path = folder / "volume.img", folder / "volume"
        self.sealed_image, self._disk = folder / "sealed.img", folder / "disk"
        self._lock: int | None = None
        self.is_limited = False
        """True if the volume is a file system with a fixed size."""
        self.is_encrypted = False
        self.why_plain = ""
        """Reason why a volume with a key is not encrypted. A volume of an earlier version stays as it is."""

    def open(self) -> None:
        """Lock and mount the volume; create it if it does not exist."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = self._lock or _locked(self._folder / _LOCK, _PATIENCE_S)
        self.path.mkdir(exist_ok=True, mode=0o700)
        if self.path.is_mount():
            self.is_limited = True
        elif os.geteuid() == 0 and not any(self.path.iterdir()):
            self.is_limited = self._mount_sealed() or self._mount()

    def close(self) -> None:
        """Unmount and unlock the volume; its content stays."""
        if self.path.is_mount():
            _tool("umount", str(self.path))
        if self._disk.is_mount():
            forget_key(self._disk, _FILES)
            _tool("umount", str(self._disk))
        self.is_encrypted = False
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def wipe(self) -> None:
        """Overwrite the content, then remove it. Copies that the disk itself keeps need disk encryption."""
        self.close()
        for image in (self.image, self.sealed_image):
            if image.exists():
                overwrite(image)
        for path in walk(self.path):
            if not path.is_symlink():
                with suppress(OSError):
                    path.chmod(0o700)  # without root we need permission to write too
                    if path.is_file():
                        overwrite(path)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _mount_sealed(self) -> bool:
        """Mount the encrypted image, created if needed; return False if there is no key or this machine cannot encrypt."""
        if self._key is None or self.image.exists():
            return False
        is_new = not self.sealed_image.exists()
        try:
            self._disk.mkdir(exist_ok=True, mode=0o700)
            if is_new:
                self._make(self.sealed_image, "-O", "encrypt")
            _tool("mount", "-o", "loop,nosuid,nodev,noatime", str(self.sealed_image), str(self._disk))
            # The root of ext4 cannot be encrypted, so the volume is a folder in it.
            _tool("mount", "--bind", str(encrypted_folder(self._disk, _FILES, self._key)), str(self.path))
        except (OSError, subprocess.SubprocessError) as error:
            with suppress(OSError, subprocess.SubprocessError):
                if self._disk.is_mount():
                    _tool("umount", str(self._disk))
            if not is_new:
                raise
            logger.info("cannot encrypt the volume of a lease: %s", error)
            self.sealed_image.unlink(missing_ok=True)
            self.why_plain = str(getattr(error, "strerror", None) or error)
            return False
        self.is_encrypted = True
        return True

    def _make(self, image: Path, *options: str) -> None:
        fd = os.open(image, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.ftruncate(fd, self._size)
        os.close(fd)
        _tool("mkfs.ext4", "-q", "-F", "-m", "0", *options, "-E", "lazy_itable_init=1,root_owner=0:0", str(image))

    def _mount(self) -> bool:
        """Mount the image, created if needed; return False if this machine cannot do that."""
        is_new = not self.image.exists()
        try:
            if is_new:
                self._make(self.image)
            _tool("mount", "-o", "loop,nosuid,nodev,noatime", str(self.image), str(self.path))
        except (OSError, subprocess.SubprocessError) as error:
            logger.info("cannot create a file system for a lease: %s", error)
            if is_new:
                self.image.unlink(missing_ok=True)
                return False
            raise
        with suppress(OSError):
            (self.path / "lost+found").rmdir()
        return True


def wipe_abandoned(folder: Path, unused_s: float = KEEP_ABANDONED_S) -> None:
    """Wipe the volumes of leases whose agent was lost and that nobody has used for `unused_s` seconds."""
    for lock in folder.glob(f"*/{_LOCK}"):
        with suppress(OSError):
            if time.time() - lock.stat().st_mtime > unused_s:
                volume = Volume(lock.parent, 0)
                volume._lock = _locked(lock, 0.0)
                logger.warning("wiping an abandoned volume: %s", lock.parent)
                volume.wipe()


def own(path: Path, uid: int) -> None:
    """Make this user and its group the owner of a tree; links are not followed."""
    for found in walk(path):
        if found.lstat().st_uid != uid:  # chown clears the setuid and setgid bits, so it is called only if needed
            os.chown(found, uid, uid, follow_symlinks=False)


def walk(root: Path) -> Iterator[Path]:
    """Yield all paths of a tree in the order of names; links are not followed.

    A folder is yielded before it is listed, so the caller can change its mode first.
    """
    ahead = [root]
    while ahead:
        path = ahead.pop()
        yield path
        if path.is_dir() and not path.is_symlink():
            ahead += [path / name for name in sorted(os.listdir(path), reverse=True)]  # noqa: PTH208


def overwrite(path: Path) -> None:
    """Overwrite a file with zeros wherever it has blocks on the disk, and sync it."""
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
    """Lock the volume and return the descriptor; wait up to `patience_s` for an agent that is closing it.

    Only one agent may mount an image at a time: two would corrupt it.
    """
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
    """Yield start and end of the parts that are stored: a sparse file of a terabyte may have only a few blocks."""
    size, at = os.fstat(fd).st_size, 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:  # nothing further
            return
        at = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, at


def dial(path: Path) -> str:
    """Return a path to connect to the socket at `path`, without following a link that the person inside may have placed there.

    The descriptor behind the returned path stays open for the life of this process.
    """
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        os.close(fd)
        raise ConnectionRefusedError(f"{path.name} is not a socket")
    return f"/proc/self/fd/{fd}"


def _tool(*argv: str) -> None:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=_TOOL_S, check=False, env={**os.environ, "PATH": path}
    )
    if done.returncode:
        raise OSError(f"{argv[0]}: {(done.stderr or done.stdout).strip()}")
