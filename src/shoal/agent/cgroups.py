"""Limits on all processes of a sandbox together: memory, processes, processor time. Version 1 of the kernel's groups, or 2."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000
_WANTED = ("memory", "pids", "cpu")
_GONE_S = 5.0


class Limits(NamedTuple):
    memory: int
    """Bytes."""
    pids: int
    cpus: float


class Group:
    """A group in each hierarchy that takes part. `open` makes it, `close` ends what is in it and removes it."""

    def __init__(self, name: str, root: Path = ROOT):
        self._root = root
        self.is_v2 = (root / "cgroup.controllers").exists()
        self.folders = [root / "shoal" / name] if self.is_v2 else _v1_folders(root, name)

    def open(self, limits: Limits) -> None:
        """OSError where this machine does not let us."""
        if self.is_v2:
            for parent in (self._root, self._root / "shoal"):
                parent.mkdir(exist_ok=True)
                (parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in _WANTED))
        for folder in self.folders:
            folder.mkdir(parents=True, exist_ok=True)
        for name, value in _values(limits, is_v2=self.is_v2):
            self._set(name, value)

    @property
    def entries(self) -> list[str]:
        """Files into which a process writes 0 to become a member."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    @property
    def out_of_memory(self) -> int:
        """How often the kernel has killed in here for want of memory."""
        with suppress(OSError):
            file = "memory.events" if self.is_v2 else "memory.oom_control"
            pairs = (line.split() for line in (self._with(file) / file).read_text().splitlines())
            return sum(int(value) for key, value in pairs if key == "oom_kill")
        return 0

    def kill(self) -> list[int]:
        """SIGKILL to all; returns those that are left after a few seconds, none as a rule."""
        with suppress(OSError):  # nobody is born from here on
            self._set("pids.max", "0")
        deadline = time.monotonic() + _GONE_S
        while (left := self._members()) and time.monotonic() < deadline:
            if self.is_v2:
                with suppress(OSError):
                    (self.folders[0] / "cgroup.kill").write_text("1")
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)
        return left

    def pause(self) -> None:
        """Stop all; returns when none runs any more. A process that is born meanwhile is stopped too."""
        stopped: set[int] = set()
        while left := [pid for pid in self._members() if pid not in stopped]:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                stopped.add(pid)

    def resume(self) -> None:
        for pid in self._members():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        for folder in self.folders:
            with suppress(OSError):
                folder.rmdir()

    def _members(self) -> list[int]:
        found: set[int] = set()
        for entry in self.entries:
            with suppress(OSError):
                found.update(int(line) for line in Path(entry).read_text().split())
        return sorted(found)

    def _set(self, name: str, value: str) -> None:
        (self._with(name) / name).write_text(value)

    def _with(self, name: str) -> Path:
        return next((folder for folder in self.folders if (folder / name).exists()), self.folders[0])


def _values(limits: Limits, *, is_v2: bool) -> list[tuple[str, str]]:
    quota = max(1_000, int(limits.cpus * _PERIOD_US))
    if is_v2:
        return [
            ("memory.max", str(limits.memory)),
            ("memory.swap.max", "0"),
            ("pids.max", str(limits.pids)),
            ("cpu.max", f"{quota} {_PERIOD_US}"),
        ]
    return [
        ("memory.limit_in_bytes", str(limits.memory)),
        ("pids.max", str(limits.pids)),
        ("cpu.cfs_period_us", str(_PERIOD_US)),
        ("cpu.cfs_quota_us", str(quota)),
    ]


def _v1_folders(root: Path, name: str) -> list[Path]:
    """Below where we are ourselves, so that what holds for us goes on to hold."""
    ours = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            ours[controller] = path.strip("/")
    return [_plain(root / which, ours.get(which, "")) / "shoal" / name for which in _WANTED]


def _plain(mount: Path, path: str) -> Path:
    # In a container the group's name is that of the host, and the mount begins below it.
    return mount / path if (mount / path).is_dir() else mount
