"""Real server process with its own data directory, for tests and benchmarks: start, kill -9, start again."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from shoal.client import Client
from shoal.client.local import owner_key, read_record, running_server, start_server, stop_server
from shoal.core.settings import Layout, ServerSettings
from shoal.testing import server_forks
from shoal.testing.cli import run_cli
from shoal.testing.patience import patient

_WAIT_S = 60.0


class LiveServer:
    """Server process of a test. All processes it starts have SHOAL_HOME=<its home>, by which leftovers are found."""

    def __init__(
        self,
        home: Path,
        *,
        slots: int = 4,
        store: str | None = None,
        preflight: bool = False,
        warm: bool = True,
        prefork: bool = True,
        **settings: Any,
    ):
        """Configure a server.

        Args:
            home: Data directory.
            slots: Number of slots of the machine.
            store: URL of the store. Default: in the data directory.
            preflight: Whether jobs that need a preflight get one before they are submitted.
            warm: Whether the server may preload torch for its jobs. Without it, every agent is started by its command line.
            prefork: Whether it has its prefork parent for the first job, forked from this run's template, instead of starting
                one by its command line when jobs follow each other.
            **settings: Other settings of the server, for its first start.
        """
        self.home, self.slots, self.store = home, slots, store
        # On a busy machine a commit may take a second without anything being wrong.
        self.settings = {
            "warm": warm,
            "busy_after_s": patient(1.0),
            **({} if preflight else {"preflight_after_h": 0.0}),
            **settings,
        }
        self.prefork = warm and prefork
        self.layout = Layout(home)

    def start(self) -> LiveServer:
        store = ["--store", self.store] if self.store else []
        if not self.layout.settings_file.exists():
            ServerSettings(**self.settings).save(self.layout)
        arguments = ["--slots", str(self.slots), *store]
        if server_forks.can_fork():
            server_forks.start_forked(self.layout, arguments, prefork=self.prefork)
        else:
            start_server(self.layout, arguments)
        return self

    def stop(self) -> None:
        stop_server(self.layout)

    def kill(self) -> None:
        """Kill the server with SIGKILL and wait until it has ended."""
        record = read_record(self.layout)
        if record is not None:
            process = psutil.Process(record.pid)
            process.kill()
            process.wait(10)

    @property
    def is_up(self) -> bool:
        return running_server(self.layout) is not None

    @contextmanager
    def client(self, workspace: str = "default") -> Iterator[Client]:
        record = running_server(self.layout)
        assert record is not None, "the server is down"
        with Client(record.url, owner_key(self.layout, record), workspace) as client:
            yield client

    def cli(
        self,
        *args: str,
        check: int | None = 0,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        process: bool = False,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run `shoal ARGS`; fail unless it exits with `check` (None: any code).

        `process`: run it in its own process. By default only commands that run the user's code get one.
        """
        done = run_cli(args, cwd=cwd or self.home, env=self.env() | (env or {}), process=process, **options)
        if check is not None and done.returncode != check:
            raise AssertionError(
                f"shoal {' '.join(args)} exited with {done.returncode}, not {check}\n{done.stdout}\n{done.stderr}"
            )
        return done

    def json(self, *args: str, check: int | None = 0) -> Any:
        return json.loads(self.cli(*args, "--json", check=check).stdout)

    def logs(self, job: str, *args: str) -> list[dict[str, Any]]:
        """Return the log lines of a job, as `training logs --json` prints them."""
        return [json.loads(line) for line in self.cli("training", "logs", job, *args, "--json").stdout.splitlines()]

    def env(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SHOAL_")}
        return {**kept, "SHOAL_HOME": str(self.home), "NO_COLOR": "1"}

    def inspect(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = self.json("training", "inspect", job)
        return found

    def wait_for(self, job: str, condition: Callable[[Any], bool], what: str = "", timeout_s: float = _WAIT_S) -> Any:
        """Return the job once `condition` is true for it; fail after the limit."""
        deadline = time.monotonic() + patient(timeout_s)
        with self.client() as client:
            while True:
                view = client.jobs.get(job)
                if condition(view):
                    return view
                if time.monotonic() > deadline:
                    raise AssertionError(
                        f"job {job}: {what or 'condition'} not met; it is {view.model_dump_json(indent=1)}"
                    )
                time.sleep(0.1)

    def processes(self) -> list[psutil.Process]:
        """Return every process with this home, except this process."""
        mine, found = os.getpid(), []
        for process in psutil.process_iter():
            try:
                home = process.environ().get("SHOAL_HOME") or process.environ().get("SHOAL_NODE_DIR", "")
                if process.pid != mine and home.startswith(str(self.home)) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def agents(self) -> list[int]:
        """Return the pids of agents and of the processes they started, without the server and its prefork parents."""
        found = []
        for process in self.processes():
            try:
                if "SHOAL_ATTEMPT_ID" in process.environ():
                    found.append(process.pid)
            except psutil.Error:
                continue
        return found

    def close(self) -> None:
        """Stop the server and kill all remaining processes of this home, by pid."""
        self.stop()
        for process in self.processes():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(self.processes(), timeout=10)


@contextmanager
def live_server(home: Path, **options: Any) -> Iterator[LiveServer]:
    """Run a server until the end of the block; the options are those of `LiveServer`."""
    home.mkdir(parents=True, exist_ok=True)
    server = LiveServer(home, **options)
    try:
        yield server.start()
    finally:
        server.close()


def processes_of(job_id: str) -> list[psutil.Process]:
    """Return every live process of a job, on all hosts of this machine, by the job id in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("SHOAL_JOB_ID") == job_id and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found
