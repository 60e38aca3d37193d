"""The work directory of a node: which agent runs it (only one at a time), how it ended, and its marks on processes."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from shoal.core.boot import boot_id
from shoal.core.directory_identity import mark
from shoal.core.private import close_folder

logger = logging.getLogger(__name__)

NODES = "nodes"
"""Name of the folder that holds all work directories of a machine (core.settings.Layout.nodes_dir)."""
SANDBOX = "sandbox"
"""Name of the file with the instructions for enter.py, present if the job sees only its own files."""
LOCK, AGENT, LAUNCH, RESULT = "lock", "agent.json", "launch.json", "result.json"


class NotReady(Exception):
    """The job's files, requirements or devices are not ready; the message is shown to the job's owner."""

    def __init__(self, text: str, local: int | None = None):
        """`local`: place of the slot whose device is not ready, among those of the node."""
        super().__init__(text)
        self.local = local


class Busy(Exception):
    """Another agent runs this node."""


class WorkDir:
    """Work directory of a node.

    Content: agent.json, launch.json, result.json, lock, spool/, source/, input/, output-checkpoint/, tmp/, agent.log.
    """

    def __init__(self, root: Path):
        self.root = root
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if root.parent.name == NODES:
            close_folder(root.parent)  # on machines other than the server's, nothing else restricts its permissions
        self._lock: IO[str] | None = None

    def lock(self) -> None:
        """Lock the directory for the life of this process; raise `Busy` if another agent holds the lock."""
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
        """Write agent.json with this process's identity, so that an engine can tell a running agent from a stale one."""
        who = {"pid": os.getpid(), "create_time": create_time(os.getpid()), "boot_id": boot_id()}
        self._write(AGENT, who | mark(self.root))

    @property
    def was_entered(self) -> bool:
        """True if an agent has ever signed in here."""
        return (self.root / AGENT).exists()

    def keep_launch(self, launch_file: Path) -> None:
        """Copy the launch file into the directory: `--salvage` needs it."""
        if launch_file.resolve() != (self.root / LAUNCH).resolve():
            self._write(LAUNCH, json.loads(launch_file.read_text()))

    @property
    def result(self) -> dict[str, Any] | None:
        """The content of result.json (how the workers ended), or None; `delivered` is set once the server has everything."""
        with suppress(OSError, ValueError):
            value = json.loads((self.root / RESULT).read_text())
            return value if isinstance(value, dict) else None
        return None

    def keep_result(self, value: dict[str, Any]) -> None:
        """Write result.json for `--salvage`. A full disk is only logged, because the server must still get the result."""
        try:
            self._write(RESULT, value)
        except OSError as error:
            logger.warning("cannot write result.json: %s", error)

    def _write(self, name: str, value: dict[str, Any]) -> None:
        aside = self.root / f".{name}.tmp"
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump(value, file)
        aside.rename(self.root / name)


def create_time(pid: int) -> float:
    """Return the start time of a process in seconds since the epoch, as psutil computes it."""
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    ticks = int(stat[stat.rfind(b")") + 2 :].split()[19])
    booted = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    return float(booted.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")


def marked_processes(attempt_id: str, node: int) -> list[int]:
    """Return the pids on this machine whose environment carries the node's marks; never our own."""
    marks = {f"SHOAL_ATTEMPT_ID={attempt_id}".encode(), f"SHOAL_NODE={node}".encode()}
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if marks <= set(Path(entry.path, "environ").read_bytes().split(b"\0")):
                    found.append(int(entry.name))
    return found
