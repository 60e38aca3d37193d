"""A node's directory and identity on its machine: who runs it now, how it ended, and that only one agent ever does."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from shoal.core.boot import boot_id
from shoal.core.place import mark
from shoal.core.private import close_folder

logger = logging.getLogger(__name__)

NODES = "nodes"
"""The folder of all work directories of a machine (core.settings.Layout.nodes_dir)."""
LOCK, AGENT, LAUNCH, RESULT = "lock", "agent.json", "launch.json", "result.json"


class NotReady(Exception):
    """What a job brought cannot be made ready; the message is for its owner."""


class Busy(Exception):
    """Another agent runs this node."""


class WorkDir:
    """Layout: agent.json, launch.json, result.json, lock, spool/, source/, input/, output-checkpoint/, tmp/, agent.log."""

    def __init__(self, root: Path):
        self.root = root
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if root.parent.name == NODES:
            close_folder(root.parent)  # elsewhere than on the server's machine nobody else does
        self._lock: IO[str] | None = None

    def lock(self) -> None:
        """Held for the life of this process."""
        self._lock = (self.root / LOCK).open("a")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(f"another agent runs {self.root}") from None

    @property
    def source(self) -> Path:
        return self.root / "source"

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"

    def spool(self, stream: str) -> Path:
        return self.root / "spool" / stream

    def sign_in(self) -> None:
        """Leave word of who we are, so that an engine can tell alive from stale."""
        who = {"pid": os.getpid(), "create_time": create_time(os.getpid()), "boot_id": boot_id()}
        self._write(AGENT, who | mark(self.root))

    def keep_launch(self, launch_file: Path) -> None:
        """A salvage needs to know what this agent knew."""
        if launch_file.resolve() != (self.root / LAUNCH).resolve():
            self._write(LAUNCH, json.loads(launch_file.read_text()))

    @property
    def result(self) -> dict[str, Any] | None:
        """How the workers ended, once they have; `delivered` when the server knows all."""
        with suppress(OSError, ValueError):
            value = json.loads((self.root / RESULT).read_text())
            return value if isinstance(value, dict) else None
        return None

    def keep_result(self, value: dict[str, Any]) -> None:
        """Keep it for a salvage. A full disk cannot hold it, which must not keep the server from hearing it."""
        try:
            self._write(RESULT, value)
        except OSError as error:
            logger.warning("how the node ended is not on its disk: %s", error)

    def _write(self, name: str, value: dict[str, Any]) -> None:
        aside = self.root / f".{name}.tmp"
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump(value, file)
        aside.rename(self.root / name)


def create_time(pid: int) -> float:
    """When a process began, seconds since the epoch; as psutil computes it."""
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    ticks = int(stat[stat.rfind(b")") + 2 :].split()[19])
    booted = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    return float(booted.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")


def marked_processes(attempt_id: str, node: int) -> list[int]:
    """Processes of this machine that carry the node's marks in their environment."""
    marks = {f"SHOAL_ATTEMPT_ID={attempt_id}".encode(), f"SHOAL_NODE={node}".encode()}
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if marks <= set(Path(entry.path, "environ").read_bytes().split(b"\0")):
                    found.append(int(entry.name))
    return found
