"""Stopping of runs: a run stops when its lock file is deleted."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from shoal.core.errors import NotFound

LOCK = ".run.lock"
"""Name of a batch's lock file in its folder; that of a run is meta/run.lock."""
_EVERY_S = 0.5


class LockWatch(threading.Thread):
    """Thread that calls `stop` once, when the file is deleted."""

    def __init__(self, file: Path, stop: Callable[[str], None]):
        super().__init__(name="topspin-stop", daemon=True)
        self._file, self._on_removed, self._closing = file, stop, threading.Event()

    def run(self) -> None:
        while not self._closing.wait(_EVERY_S):
            if not self._file.exists():
                self._on_removed(f"{self._file} was removed")
                return

    def close(self) -> None:
        self._closing.set()
        if self.is_alive() and threading.current_thread() is not self:
            self.join()


def stop(path_work: str) -> str:
    """Stop a run, or a batch with all its runs, by its folder; return a message."""
    folder = Path(path_work)
    for lock, what in ((folder / LOCK, "batch"), (folder / "meta" / "run.lock", "run")):
        if lock.is_file():
            lock.unlink(missing_ok=True)
            return f"the {what} in {folder} saves and stops"
    if not (folder / "meta").is_dir() and not list(folder.glob("*/meta")):
        raise NotFound(
            f"{folder} is not the work folder of a run", hint="it looks like work/run.my_task.utc_2024-05-01…"
        )
    raise NotFound(f"{folder} is not running")


def stop_distributed_train(path_work: str) -> None:
    """Let a run save and stop."""
    stop(path_work)


def stop_train(run_id: int | str, folder: str = "work") -> None:
    """Let a batch save and stop, by the number in its folder's name."""
    name = f"batch_task.run_id_{run_id}"
    found = [p for p in Path(folder).glob(f"{name}*") if p.name == name or p.name.startswith(f"{name}.")]
    if not found:
        raise NotFound(f"there is no batch {run_id} in {Path(folder).absolute()}")
    stop(str(found[0]))


def clear_server(ip: str) -> None:
    """Stop all trainings that this user's starters have started on a server; they may save first."""
    import subprocess

    from shoal.train.hosts import Host

    host = Host(ip)
    if host.is_here:
        end_launchers()
    else:
        subprocess.run(host.command([sys.executable, "-m", "shoal.compat.topspin.stopping"]), check=False)


def launchers() -> list[int]:
    """Return the process ids of this user's launchers on this machine."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and entry.stat().st_uid == os.getuid():
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if b"shoal.train.launch" in words:
                    found.append(int(entry.name))
        except OSError:
            continue
    return sorted(found)


def end_launchers() -> None:
    for pid in launchers():
        print(f"stopping {pid}")
        os.kill(pid, signal.SIGTERM)


if __name__ == "__main__":
    end_launchers()
