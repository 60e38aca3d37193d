"""The coordinator of a swarm as a process that outlives the server and never runs twice.

It has its own session. Its folder holds a lock file that the process keeps locked as long as it lives, a FIFO for commands
from the server, and one file per start with the reports it writes. A restarted server finds the process by its environment.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from shoal.core.private import write_private
from shoal.core.swarm import CoordinatorSettings

COMMAND = (sys.executable, "-m", "shoal.swarm.coordinator")
MARK = "SHOAL_NODE_DIR"
"""Environment variable of all processes of a coordinator; its value is the coordinator's folder."""
_NOT_THEIRS = ("SHOAL_API_KEY", "SHOAL_URL", "SHOAL_SWARM")
_TELL_S = 2.0
_KILL_S = 5.0
_LONGEST_LINE = 16 << 20
_TAIL = 4096


class CoordinatorProcess:
    """Handle on a coordinator's process: start, find again, send commands, read reports, end."""

    def __init__(self, folder: Path, command: Sequence[str] = COMMAND):
        self.folder, self._command = folder, command
        self._child: subprocess.Popen[bytes] | None = None
        self._process: psutil.Process | None = None

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self.is_alive else None

    @property
    def is_alive(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        with suppress(psutil.Error):
            return self._process is not None and self._process.status() != psutil.STATUS_ZOMBIE
        return False

    def adopt(self) -> bool:
        """Find a coordinator that an earlier server has started; return whether there is one."""
        leaders = [p for p in self._marked() if _session(p.pid) == p.pid]
        self._process = leaders[0] if leaders else None
        return self._process is not None

    def start(self, number: int, settings: CoordinatorSettings) -> bool:
        """Start the coordinator after ending all processes of an earlier one.

        Return False if one of them still holds the lock; a later call may succeed.
        """
        self.kill()
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.checkpoints.mkdir(exist_ok=True)
        with (self.folder / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            self._drop_old(number)
            write_private(self.folder / "order.json", settings.model_dump_json())
            self._spawn(number, lock.fileno())
        return True

    def send(self, message: Mapping[str, Any]) -> bool:
        """Send a command to the coordinator; return False if it does not read it."""
        data = memoryview(json.dumps(message).encode() + b"\n")
        try:
            fd = os.open(self._fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return False
        deadline = time.monotonic() + _TELL_S
        try:
            while data and time.monotonic() < deadline:
                if select.select([], [fd], [], 0.1)[1]:
                    data = data[os.write(fd, data) :]
            return not data
        except OSError:
            return False
        finally:
            os.close(fd)

    def read_messages(self, number: int, offset: int, most: int = 1 << 20) -> tuple[list[tuple[bytes, int]], int]:
        """Return the complete report lines after `offset`, each with its end offset, and the offset after all of them.

        `number` is the number of the start whose reports are read.
        """
        try:
            with self._lines(number).open("rb") as file:
                file.seek(offset)
                data = file.read(most)
                while data and b"\n" not in data and len(data) < _LONGEST_LINE and (more := file.read(most)):
                    data += more
        except FileNotFoundError:
            return [], offset
        if b"\n" not in data:
            return [], offset + (len(data) if len(data) >= _LONGEST_LINE else 0)
        lines = []
        for line in data[: data.rindex(b"\n")].split(b"\n"):
            offset += len(line) + 1
            lines.append((line, offset))
        return lines, offset

    def terminate(self) -> None:
        if self._process is not None:
            with suppress(psutil.Error):
                self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill all processes of this folder and wait until they have ended, for at most five seconds."""
        deadline = time.monotonic() + _KILL_S
        while (left := self._marked()) and time.monotonic() < deadline:
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
            if self._child is not None:
                self._child.poll()
            psutil.wait_procs(left, timeout=0.2)
        self._process = self._child = None

    def last_words(self) -> str:
        """Return the last line of the coordinator's log, or an empty string."""
        try:
            with (self.folder / "keeper.log").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
                lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines()]
        except OSError:
            return ""
        return next((line[:300] for line in reversed(lines) if line), "")

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _fifo(self) -> Path:
        return self.folder / "orders"

    def _lines(self, number: int) -> Path:
        return self.folder / f"told.{number}.jsonl"

    def _drop_old(self, number: int) -> None:
        for path in self.folder.glob("told.*.jsonl"):
            if path != self._lines(number):
                path.unlink(missing_ok=True)
        self._fifo.unlink(missing_ok=True)
        os.mkfifo(self._fifo, 0o600)

    def _spawn(self, number: int, lock: int) -> None:
        env = {k: v for k, v in os.environ.items() if k not in _NOT_THEIRS} | {MARK: str(self.folder)}
        # Opened for writing too, so that the coordinator reads no end-of-file when the server dies.
        commands = os.open(self._fifo, os.O_RDWR)
        try:
            with self._lines(number).open("ab") as told, (self.folder / "keeper.log").open("wb") as log:
                self._child = subprocess.Popen(
                    [*self._command, str(self.folder / "order.json")],
                    stdin=commands,
                    stdout=told,
                    stderr=log,
                    cwd=self.folder,
                    env=env,
                    pass_fds=[lock],
                    start_new_session=True,
                )
        finally:
            os.close(commands)
        self._process = psutil.Process(self._child.pid)

    def _marked(self) -> list[psutil.Process]:
        found, mine = [], str(self.folder)
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == mine and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1
