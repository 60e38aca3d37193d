"""The newest gauges of a job's GPUs, from the one reader of its machine (`watch`), which is started if none runs.

Why it is safe: the reader replaces its file as a whole, so agents see one reading or the next. Two agents may start a reader at
once; the lock of the folder lets one of them live. A reader that hangs keeps the lock, its file grows old, and no gauges are
reported; a new one is tried once a minute.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.agent.devices.system_metrics import INTERVAL_S as EVERY_S

if TYPE_CHECKING:
    from shoal.agent.devices.gauges import Gauge

_FRESH_S = 3 * EVERY_S
_START_S, _RETRY_S = 15.0, 60.0


def gauges_file(folder: Path) -> Path:
    """Return the reader's file on this machine. Its name tells the machine, because machines may share the folder."""
    return folder / f"gauges-{os.uname().nodename}.json"


class Readings:
    """Finds the gauges of the given GPUs."""

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        *,
        own: Path | None = None,
        spawn: Callable[[Path], subprocess.Popen[bytes]] | None = None,
        clock: Callable[[], float] = time.time,
    ):
        """Set up without a reader.

        Args:
            folder: Folder of the machine's reader, shared by all agents.
            names: UUIDs or numbers of the GPUs.
            own: Folder for a reader of our own, for the case that the shared one may not see our GPUs (a batch system that
                hides devices from jobs).
            spawn: Start a reader for a folder.
            clock: Unix seconds.
        """
        self._folder, self._names, self._own, self._clock = folder, list(names), own, clock
        self._spawn = spawn or start_reader
        self._child: subprocess.Popen[bytes] | None = None
        self._tried_at, self._tries = float("-inf"), 0

    @property
    def reader_pid(self) -> int | None:
        """Return the pid of the reader that this object started, while it runs."""
        return self._child.pid if self._child is not None and self._child.poll() is None else None

    def newest(self) -> list[Gauge]:
        """Return one gauge per GPU, in the order of the names; empty until the first reading, or if the driver hangs."""
        found = self._fresh()
        if found is None:
            self._ensure_reader()
            return []
        self._tries = 0
        mine = [gauge for name in self._names if (gauge := _named(found, name)) is not None]
        if len(mine) < len(self._names) and self._own is not None:
            self.stop()
            self._folder, self._own = self._own, None
            self._tried_at = float("-inf")
        return mine

    def stop(self) -> None:
        """End the reader if this object started it."""
        if self._child is not None:
            self._child.kill()
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(timeout=1.0)
            self._child = None

    def _fresh(self) -> list[Gauge] | None:
        file = gauges_file(self._folder)
        with suppress(OSError, ValueError, KeyError):
            if abs(self._clock() - file.stat().st_mtime) <= _FRESH_S:
                found: list[Gauge] = json.loads(file.read_text())["gpus"]
                return found
        return None

    def _ensure_reader(self) -> None:
        pause = _START_S if self._tries < 2 else _RETRY_S
        if self.reader_pid is None and self._clock() - self._tried_at >= pause:
            self._tried_at, self._tries = self._clock(), self._tries + 1
            self._child = self._spawn(self._folder)


def start_reader(folder: Path) -> subprocess.Popen[bytes]:
    """Start a reader for a folder. It ends with the thread that calls this."""
    argv = [sys.executable, "-m", "shoal.agent.devices.watch", str(folder), str(EVERY_S)]
    env = {name: value for name, value in os.environ.items() if "VISIBLE_DEVICES" not in name}
    quiet = subprocess.DEVNULL
    return subprocess.Popen(argv, stdin=quiet, stdout=quiet, stderr=quiet, env=env, cwd="/")


def _named(found: Sequence[Gauge], name: str) -> Gauge | None:
    if name.isdigit():
        return next((gauge for gauge in found if gauge.get("i") == int(name)), None)
    return next((gauge for gauge in found if gauge["uuid"] == name), None)
