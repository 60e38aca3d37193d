"""A small disk of its own: an ext4 file system in a file, which can be filled, and whose power can be cut."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import time
from contextlib import suppress
from pathlib import Path

_SHUTDOWN = 0x8004587D
"""FS_IOC_SHUTDOWN, _IOR('X', 125, __u32)."""
_WITHOUT_FLUSH = 2


def missing() -> str | None:
    """Return why no small disk can be made here, as a reason to skip tests; None if one can."""
    if os.geteuid() != 0:
        return "only root can mount a small disk"
    absent = [name for name in ("mkfs.ext4", "mount", "umount", "losetup") if shutil.which(name) is None]
    return f"a small disk needs {', '.join(absent)}" if absent else None


class SmallDisk:
    """File system mounted at `folder`/disk until `close`."""

    def __init__(self, folder: Path, *, mb: int = 512):
        self._image, self.path = folder / "disk.img", folder / "disk"
        self._filler = self.path / "filler"
        with self._image.open("wb") as file:
            file.truncate(mb << 20)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(self._image)], check=True)
        self.path.mkdir()
        self._mount()

    def fill(self) -> None:
        """Write until the disk is full, also the blocks that small files would still find."""
        with self._filler.open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                with suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)

    def cut_power(self) -> None:
        """Lose everything that was not flushed, then mount what is left. No process may use the disk any more."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _WITHOUT_FLUSH))
        finally:
            os.close(fd)
        self._unmount()
        # Another mount namespace may hold the old file system for longer, which then stays shut down: a copy has its own.
        after = self._image.with_suffix(".after")
        subprocess.run(["cp", "--sparse=always", str(self._image), str(after)], check=True)
        after.replace(self._image)
        self._mount()

    def close(self) -> None:
        self._unmount()
        self._image.unlink()

    def _mount(self) -> None:
        subprocess.run(["mount", "-o", "loop", str(self._image), str(self.path)], check=True)

    def _unmount(self) -> None:
        for _ in range(100):
            done = subprocess.run(["umount", str(self.path)], capture_output=True, text=True)
            if done.returncode == 0 or "not mounted" in done.stderr:
                return
            time.sleep(0.1)
        raise AssertionError(f"the small disk cannot be unmounted: {done.stderr}")
