"""Limits for all processes of a sandbox together: memory, number of processes, CPU time. Uses cgroups, version 1 or 2."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from shoal.agent.sandbox import device_wall

logger = logging.getLogger(__name__)
ROOT = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000
_WANTED = ("memory", "pids", "cpu")
_GONE_S = 5.0
_WEIGHT_V1, _WEIGHT_V2 = 1024, 100
"""Weight of a group that may use the whole machine: the kernel's default."""


class Limits(NamedTuple):
    """Limits for all processes of a cgroup together."""

    memory: int
    """Memory limit in bytes; 0: none."""
    pids: int
    cpus: float
    """Number of CPUs; 0: all."""
    share: float = 1.0
    """Share of the machine's CPU time when others want it too; between 0 and 1."""


class Group:
    """A cgroup in each hierarchy used. `open` creates it; `close` kills the processes in it and removes it."""

    def __init__(self, name: str, root: Path = ROOT):
        self._root = root
        self.is_v2 = (root / "cgroup.controllers").exists()
        self.folders = [root / "shoal" / name] if self.is_v2 else _v1_folders(root, name, _WANTED)
        self._devices = self.folders[0] if self.is_v2 else _v1_folders(root, name, ["devices"])[0]
        if not self.is_v2 and self._devices.is_dir():  # made by an agent before this one
            self.folders.append(self._devices)

    def open(self, limits: Limits) -> None:
        """Create the cgroup with these limits; raise OSError if this machine does not allow it."""
        if self.is_v2:
            for parent in (self._root, self._root / "shoal"):
                parent.mkdir(exist_ok=True)
                (parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in _WANTED))
        for folder in self.folders:
            folder.mkdir(parents=True, exist_ok=True)
        for name, value in _values(limits, is_v2=self.is_v2):
            self._set(name, value)

    def limit_devices(self, files: Iterable[str]) -> bool:
        """Let the processes open only the usual device files and these; return False if this machine does not allow that."""
        allowed = device_wall.rules(files)
        try:
            if self.is_v2:
                device_wall.limit_v2(self._devices, allowed)
                return True
            self._devices.mkdir(parents=True, exist_ok=True)
            if self._devices not in self.folders:
                self.folders.append(self._devices)
            device_wall.limit_v1(self._devices, allowed)
        except OSError as error:
            logger.info("device files are not limited by the cgroup: %s", error.strerror or error)
            return False
        return True

    @property
    def entries(self) -> list[str]:
        """Files into which a process writes 0 to become a member."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    @property
    def out_of_memory(self) -> int:
        """Number of processes in the cgroup that the kernel has killed for lack of memory."""
        with suppress(OSError):
            file = "memory.events" if self.is_v2 else "memory.oom_control"
            pairs = (line.split() for line in (self._with(file) / file).read_text().splitlines())
            return sum(int(value) for key, value in pairs if key == "oom_kill")
        return 0

    @property
    def peak_memory(self) -> int:
        """Largest memory use so far in bytes; 0 if the kernel does not tell."""
        for name in ("memory.peak", "memory.max_usage_in_bytes"):
            with suppress(OSError, ValueError):
                return int((self._with(name) / name).read_text())
        return 0

    def kill(self) -> list[int]:
        """Send SIGKILL to all processes; return those left after a few seconds, normally none."""
        with suppress(OSError):  # prevents new processes
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
        """Stop all processes and return when none runs. Processes that are forked meanwhile are stopped too."""
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
    values = [("pids.max", str(limits.pids))]
    if is_v2:
        if limits.share < 1:
            values.append(("cpu.weight", str(max(1, int(_WEIGHT_V2 * limits.share)))))
        if limits.memory:
            values += [("memory.max", str(limits.memory)), ("memory.swap.max", "0")]
        if limits.cpus:
            values.append(("cpu.max", f"{quota} {_PERIOD_US}"))
        return values
    if limits.share < 1:
        values.append(("cpu.shares", str(max(2, int(_WEIGHT_V1 * limits.share)))))
    if limits.memory:
        values.append(("memory.limit_in_bytes", str(limits.memory)))
    if limits.cpus:
        values += [("cpu.cfs_period_us", str(_PERIOD_US)), ("cpu.cfs_quota_us", str(quota))]
    return values


def _v1_folders(root: Path, name: str, controllers: Iterable[str]) -> list[Path]:
    """Return the folders below our own cgroups, so that our own limits still apply."""
    ours = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, mounted, path = line.split(":", 2)
        for controller in mounted.split(","):
            ours[controller] = path.strip("/")
    return [_plain(root / which, ours.get(which, "")) / "shoal" / name for which in controllers]


def _plain(mount: Path, path: str) -> Path:
    # In a container the path is that of the host, while the mount begins below it.
    return mount / path if (mount / path).is_dir() else mount
