"""Shoal's actor on a machine, inside a worker of Ray: starts agents under supervisors, reports when they end, and ends them.

It does not use Ray's API.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.agent.devices import inventory
from shoal.agent.devices.device import Device, Inventory
from shoal.core.faults import out_of_space
from shoal.core.private import write_private
from shoal.engines.device_slots import LATER_TIMEOUT_S, merged

logger = logging.getLogger(__name__)

SUPERVISOR_PID = "RAY_SHOAL_SUPERVISOR"
"""Variable in Ray's environment with the pid of the machine's daemon, whose own environment agents get."""
FOLDER = "RAY_SHOAL_FOLDER"
"""Variable in Ray's environment with the daemon's folder, which is in Shoal's directory on the machine."""
_STOP_S = 15.0
_READ_S = 30.0
_DISK_S = 5.0
_NEWS_S = 60.0
_REMEMBERED = 200
"""Most ended agents remembered; the driver's long poll receives an end within milliseconds."""


class MachineActor:
    """Starts and ends named agents, all of which end with this process; reads the machine's accelerators and its free disk space.

    `_changed` guards the tables; each change increases the version. A thread per agent waits for its end, one reads the
    accelerators, if the machine may have any, and one the free disk space.
    """

    def __init__(
        self,
        take: Callable[[float], Inventory] | None = None,
        every_s: float = _READ_S,
        free_bytes: Callable[[], int] | None = None,
        disk_every_s: float = _DISK_S,
    ) -> None:
        """Set up without agents.

        `take` reads the accelerators within a number of seconds, `free_bytes` the free space of the disk for agents; by default
        those of this machine.
        """
        self._changed = threading.Condition()
        self._version = 0
        self._supervisors: dict[str, subprocess.Popen[bytes]] = {}
        self._ended: deque[str] = deque(maxlen=_REMEMBERED)
        self._devices: dict[str, Any] | None = None
        """The inventory as last read; None before the first reading, and on machines without accelerators."""
        self._full = ""
        """Why no agent can start on this machine's disk; empty if it has room."""
        self._every_s, self._closing = every_s, threading.Event()
        if free_bytes is not None or FOLDER in os.environ:
            arguments = (free_bytes or _free_bytes, disk_every_s)
            threading.Thread(target=self._read_disk, args=arguments, daemon=True).start()
        if take is not None or inventory.present(Path("/"), _machine_env())[0]:
            threading.Thread(target=self._read_devices, args=(take or _scan_inventory,), daemon=True).start()

    def close(self) -> None:
        """Stop reading the accelerators and the disk."""
        self._closing.set()

    def start(self, name: str, work_dir: str, argv: list[str], launch: str | None, env: dict[str, str]) -> None:
        """Start an agent unless one of this name runs. `launch` is the content for launch.json."""
        directory = Path(work_dir)
        with self._changed:
            if name in self._supervisors:
                return
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            if launch is not None:
                write_private(directory / "launch.json", launch)
            while name in self._ended:
                self._ended.remove(name)
            supervisor = self._supervisors[name] = _start_supervisor(argv, directory, _machine_env() | env)
            self._notify()
        threading.Thread(target=self._await, args=(name, supervisor), daemon=True).start()

    def stop(self, names: list[str]) -> None:
        """End these agents; nothing of them is left when this returns."""
        deadline = time.monotonic() + _STOP_S
        with self._changed:
            for name in names:
                supervisor = self._supervisors.get(name)
                if supervisor is not None and supervisor.stdin is not None:
                    supervisor.stdin.close()
            while left := [name for name in names if name in self._supervisors]:
                if not self._changed.wait(deadline - time.monotonic()):
                    raise TimeoutError(f"still running: {', '.join(left)}")

    def news(self, after: int) -> dict[str, Any]:
        """Return the running and the ended agents, as soon as their version differs from `after` or after _NEWS_S."""
        with self._changed:
            if self._version == after:
                self._changed.wait(_NEWS_S)
            return {
                "version": self._version,
                "live": list(self._supervisors),
                "ended": list(self._ended),
                "devices": None if self._devices is None else self._devices["devices"],  # all that servers of 0.1 read
                "inventory": self._devices,
                "full": self._full,
            }

    def remove(self, work_dirs: list[str]) -> None:
        for directory in work_dirs:
            shutil.rmtree(directory, ignore_errors=True)

    def _read_devices(self, take: Callable[[float], Inventory]) -> None:
        """Read the accelerators for ever. Those that disappear stay, with the reason; a driver that hangs delays only this."""
        known: list[Device] = []
        while not self._closing.is_set():
            try:
                found = take(LATER_TIMEOUT_S)
                known = merged(known, found, found.kind)
                read = replace(found, devices=tuple(known)).to_json()
            except Exception as error:
                logger.warning("the accelerators cannot be read: %s", error)
                read = self._devices or Inventory().to_json()
            with self._changed:
                if read != (self._devices or Inventory().to_json()):
                    self._devices = read
                    self._notify()
            self._closing.wait(self._every_s)

    def _read_disk(self, free_bytes: Callable[[], int], every_s: float) -> None:
        """Look at the disk for ever. Only a disk without room, and its end, count as changes: each one reaches the server."""
        while not self._closing.is_set():
            try:
                full = out_of_space(free_bytes())
            except OSError as error:
                full = f"unable to read its disk ({error.strerror})"
            with self._changed:
                if full != self._full:
                    self._full = full
                    self._notify()
            self._closing.wait(every_s)

    def _await(self, name: str, supervisor: subprocess.Popen[bytes]) -> None:
        supervisor.wait()
        with self._changed:
            del self._supervisors[name]
            self._ended.append(name)
            self._notify()

    def _notify(self) -> None:
        self._version += 1
        self._changed.notify_all()


def _scan_inventory(timeout_s: float) -> Inventory:
    return inventory.scan(env=_machine_env(), timeout_s=timeout_s)


def _free_bytes() -> int:
    return shutil.disk_usage(Path(os.environ[FOLDER]).parent).free


def _start_supervisor(argv: list[str], directory: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    with (directory / "agent.log").open("ab") as log:
        # Its stdin is a pipe that closes when this process ends, which makes it end too.
        return subprocess.Popen(
            [sys.executable, "-m", "shoal.engines.ray.supervisor", *argv],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=directory,
            env=env,
            start_new_session=True,
        )


def _machine_env() -> dict[str, str]:
    """Return the machine's environment as it was before Ray added its own settings (threads, accelerators, credentials)."""
    try:
        raw = Path(f"/proc/{int(os.environ[SUPERVISOR_PID])}/environ").read_bytes()
        pairs: Any = (entry.partition("=") for entry in os.fsdecode(raw).split("\0") if "=" in entry)
        env = {name: value for name, _, value in pairs}
    except (KeyError, ValueError, OSError):
        env = dict(os.environ)
    return {k: v for k, v in env.items() if not k.startswith("RAY_") and k not in ("SHOAL_API_KEY", "SHOAL_URL")}
