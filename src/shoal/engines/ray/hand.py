"""Shoal's hand on a machine, inside a worker of Ray's: starts agents under guards, tells when they end, ends them. Knows nothing of Ray."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from shoal.core.private import write_private

SUPERVISOR_PID = "RAY_SHOAL_SUPERVISOR"
"""In Ray's environment: the supervisor's pid, whose own environment is what agents get."""
_STOP_S = 15.0
_NEWS_S = 60.0
_REMEMBERED = 200
"""Of those that have ended: whoever listens hears of an end within milliseconds."""


class Hand:
    """Its processes have names; each ends with this one, however that ends."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._version = 0
        self._guards: dict[str, subprocess.Popen[bytes]] = {}
        self._ended: deque[str] = deque(maxlen=_REMEMBERED)

    def start(self, name: str, work_dir: str, argv: list[str], launch: str | None, env: dict[str, str]) -> None:
        """`launch` is what goes to launch.json. One that runs is left running."""
        directory = Path(work_dir)
        with self._changed:
            if name in self._guards:
                return
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            if launch is not None:
                write_private(directory / "launch.json", launch)
            while name in self._ended:
                self._ended.remove(name)
            guard = self._guards[name] = _guard(argv, directory, _machine_env() | env)
            self._tell()
        threading.Thread(target=self._await, args=(name, guard), daemon=True).start()

    def stop(self, names: list[str]) -> None:
        """Nothing of them is left when this returns."""
        deadline = time.monotonic() + _STOP_S
        with self._changed:
            for name in names:
                guard = self._guards.get(name)
                if guard is not None and guard.stdin is not None:
                    guard.stdin.close()
            while left := [name for name in names if name in self._guards]:
                if not self._changed.wait(deadline - time.monotonic()):
                    raise TimeoutError(f"still running: {', '.join(left)}")

    def news(self, after: int) -> dict[str, Any]:
        """Who runs and who has ended, as soon as that is newer than version `after`."""
        with self._changed:
            if self._version == after:
                self._changed.wait(_NEWS_S)
            return {"version": self._version, "live": list(self._guards), "ended": list(self._ended)}

    def remove(self, work_dirs: list[str]) -> None:
        for directory in work_dirs:
            shutil.rmtree(directory, ignore_errors=True)

    def _await(self, name: str, guard: subprocess.Popen[bytes]) -> None:
        guard.wait()
        with self._changed:
            del self._guards[name]
            self._ended.append(name)
            self._tell()

    def _tell(self) -> None:
        self._version += 1
        self._changed.notify_all()


def _guard(argv: list[str], directory: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    with (directory / "agent.log").open("ab") as log:
        # The other end of its stdin closes with this process: that is how it knows.
        return subprocess.Popen(
            [sys.executable, "-m", "shoal.engines.ray.guard", *argv],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=directory,
            env=env,
            start_new_session=True,
        )


def _machine_env() -> dict[str, str]:
    """As it was before Ray put its own settings (threads, accelerators, credentials) into it."""
    try:
        raw = Path(f"/proc/{int(os.environ[SUPERVISOR_PID])}/environ").read_bytes()
        pairs: Any = (entry.partition("=") for entry in os.fsdecode(raw).split("\0") if "=" in entry)
        env = {name: value for name, _, value in pairs}
    except (KeyError, ValueError, OSError):
        env = dict(os.environ)
    return {k: v for k, v in env.items() if not k.startswith("RAY_") and k not in ("SHOAL_API_KEY", "SHOAL_URL")}
