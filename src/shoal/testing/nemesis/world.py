"""The server under test, with a disk and a shim of its own."""

from __future__ import annotations

import os
import secrets
import signal
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil

from shoal.client import Client
from shoal.client.local import owner_key, read_record, running_server, server_command, start_server
from shoal.client.server_record import ServerRecord
from shoal.core.errors import ShoalError, Unreachable
from shoal.core.settings import ServerSettings
from shoal.testing.live import LiveServer
from shoal.testing.nemesis import disk, shim
from shoal.testing.patience import patient
from shoal.testing.processes import command, environment

NODE_TIMEOUT_S = 15.0


class World(LiveServer):
    """Server on a small disk (as root) or in a folder, whose processes a shim can make sick."""

    def __init__(self, folder: Path, *, slots: int = 4, small_disk: bool = True):
        self.folder = folder
        self.witness = folder / "witness"
        self.witness.mkdir(parents=True)
        self.disk = disk.SmallDisk(folder) if small_disk and disk.missing() is None else None
        home = (self.disk.path if self.disk else folder) / "home"
        home.mkdir()
        super().__init__(home, slots=slots, warm=False, node_timeout_s=NODE_TIMEOUT_S, stop_grace_s=2.0)
        self.shim = shim.Shim(folder, home)
        self.lives = 0
        """Number of server processes started."""
        self.is_closing = threading.Event()

    def start(self) -> World:
        if not self.layout.settings_file.exists():
            ServerSettings(**self.settings).save(self.layout)
        sick = [f"{name}={value}" for name, value in self.shim.env.items()]
        command = ["/usr/bin/env", *sick, *server_command(self.layout)]
        start_server(self.layout, ["--slots", str(self.slots)], command=command, patience_s=patient(120))
        self.lives += 1
        return self

    def record(self) -> ServerRecord | None:
        return read_record(self.layout)

    def connect(self) -> Client:
        """Return a client of the present server, which also finds the next one. Raise Unreachable while there is none."""

        def locate() -> str | None:
            record = running_server(self.layout)
            return record.url if record else None

        record = running_server(self.layout)
        if record is None:
            raise Unreachable()
        try:
            key = owner_key(self.layout, record)
        except OSError as error:  # the disk is sick
            raise Unreachable() from error
        return Client(record.url, key, locate=locate)

    def wait_dead(self, limit_s: float = 60.0) -> int | None:
        """Wait for the present server process to end; return its exit code, or None if it still lives after the limit."""
        record = self.record()
        if record is None:
            return None
        try:
            return int(psutil.Process(record.pid).wait(patient(limit_s)) or 0)
        except psutil.TimeoutExpired:
            return None
        except psutil.NoSuchProcess:
            return 0

    def is_well(self) -> bool:
        """True if the server acknowledges a write and reports no problem."""
        with suppress(ShoalError, OSError, ValueError):
            with self.connect() as client:
                client._http.pauses_s, client._http.patience_s = (), 0.0
                health = client._http.send("GET", "/health", timeout_s=5).json()
                name = f"probe-{secrets.token_hex(4)}"
                client.keys.create(name, expires_in_s=60)
                client.keys.revoke(name)
            return bool(health["health"] == "ok")
        return False

    def worker_pids(self) -> list[int]:
        """Return the processes that run the script of a job."""
        found = [p for p in psutil.process_iter() if "count.py" in command(p)]
        return [p.pid for p in found if environment(p).get("WITNESS") == str(self.witness)]

    def agent_pids(self) -> list[int]:
        return [p.pid for p in self.processes() if "shoal.agent" in command(p)]

    def cut_power(self) -> None:
        """Kill everything of this machine at one instant and lose what was not flushed."""
        assert self.disk is not None
        deadline = time.monotonic() + patient(20)
        while processes := self.processes():
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGSTOP)  # nothing reacts to the end of another
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(processes, timeout=2)
            if time.monotonic() > deadline:
                raise AssertionError(f"processes survive SIGKILL: {processes}")
        self.disk.cut_power()

    def remove(self) -> None:
        """End everything and remove the disk."""
        self.is_closing.set()
        self.shim.heal()
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
        self.close()
        self.shim.close()
        if self.disk is not None:
            self.disk.close()


def scratch() -> Path:
    """Return a new folder for one run."""
    return Path(tempfile.mkdtemp(prefix="shoal-nemesis-", dir=os.environ.get("TMPDIR")))
