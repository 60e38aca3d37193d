"""Keeps Ray running on a machine. One daemon per machine, in its own session.

Ray's processes are its children, orphans included. When Ray dies here or the head declares this machine dead, the daemon kills
everything below itself and starts Ray again, until that works. On SIGTERM everything below ends with it.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import logging
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from shoal.agent.link import backoff
from shoal.agent.workers.parent import become_subreaper, kill_below, reap
from shoal.engines.identity import holder, sign
from shoal.engines.ray.actor import FOLDER, SUPERVISOR_PID

logger = logging.getLogger(__name__)

MACHINE_RESOURCE, SLOT_RESOURCE = "machine:", "shoal_slot"
SIGNATURE, TOKEN = "node.json", "token"
UP = "up"
"""Name of a file that exists while Ray runs, from the moment its start is complete."""
_VITAL = ("raylet", "gcs_server")
"""Variable that marks all processes of Ray that belong to the folder of a daemon."""
_LEAST_PAUSE_S, _MOST_PAUSE_S = 0.5, 10.0
_STARTS_WITHIN_S = 120.0
_GOODBYE_S, _STOP_S = 3.0, 20.0
_LONGEST_FOLDER = 38
_ORPHANS_EVERY_S = 5.0
"""Seconds between searches for orphans, which appear without a signal; normally the supervisors leave none."""
_STEADY_S = 60.0
"""Seconds of operation after which the pauses between restarts begin again with the shortest."""
ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    # Machines of one pool seldom have the same patch version of Python; Ray demands it by default.
    "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",
    # A machine that does not answer is given up after 3 to 15 s, depending on the failure; by default it takes a minute.
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "5",
    # A call to an actor whose process has ended fails at once, instead of waiting for the reason.
    "RAY_timeout_ms_task_wait_for_death_info": "200",
    # Without a connection to the head, Ray ends here and the daemon starts it again.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "30",
    # Agents watch the memory of their workers; Ray would kill the wrong process.
    "RAY_memory_monitor_refresh_ms": "0",
    # Agents inherit these. Ray's defaults would give training the lowest CPU priority and make the kernel kill it first.
    "RAY_worker_niceness": "0",
    "RAY_worker_oom_score_adjustment": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_enable_metrics_collection": "0",
    # The dashboard would publish its metrics on all interfaces; with an impossible port it does not.
    "DASHBOARD_METRIC_PORT": "-1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_START_HOOK": "shoal.engines.ray.daemon.without_client",
    "PYTHONUNBUFFERED": "1",
}


def main(args: list[str]) -> int:
    options = _parser().parse_args(args)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    return stop(options.home) if options.stop else Daemon(options).run()


def folder_in(home: Path) -> Path:
    """Return the folder of a daemon's lock, its signature and the cluster's token."""
    return home.absolute() / "ray"


def stop(home: Path) -> int:
    """End the daemon of this home and everything it started; return 0."""
    signature = folder_in(home) / SIGNATURE
    process, deadline = holder(signature), time.monotonic() + _STOP_S
    with suppress(psutil.NoSuchProcess):
        if process is not None:
            process.terminate()
            # Check the signature, because a process that has ended may still look alive to non-parents.
            while holder(signature) and time.monotonic() < deadline:
                time.sleep(0.05)
            if holder(signature):
                kill_below(process.pid)
                process.kill()
    return 0


def without_client(parameters: Any, head: bool) -> None:
    """Disable Ray's client server, which would listen on all interfaces. Called by `ray start`."""
    parameters.ray_client_server_port = None


class Daemon:
    """Starts Ray on this machine and starts it again whenever it ends."""

    def __init__(self, options: argparse.Namespace):
        self._options = options
        self._folder = folder_in(options.home)
        self._temp = temp_dir(self._folder)
        self._ending = False
        self._wake_r, wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)

    def run(self) -> int:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self._folder / "node.lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                logger.info("another daemon already keeps Ray running in %s", self._folder)
                return 0
            signal.signal(signal.SIGCHLD, lambda *_: None)
            for signum in (signal.SIGTERM, signal.SIGINT):
                signal.signal(signum, self._end)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            become_subreaper()
            self._end_leftovers()
            (self._folder / UP).unlink(missing_ok=True)
            sign(self._folder / SIGNATURE)
            try:
                self._keep_running()
            finally:
                kill_below(os.getpid())
                shutil.rmtree(self._temp, ignore_errors=True)
                (self._folder / SIGNATURE).unlink(missing_ok=True)
        return 0

    def _end(self, *_: object) -> None:
        self._ending = True

    def _end_leftovers(self) -> None:
        """Kill the Ray processes of a daemon that was killed: two Rays would both claim to be this machine."""
        mark = f"{FOLDER}={self._folder}".encode()
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):
                if mark in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                    kill_below(process.pid)
                    process.kill()

    def _keep_running(self) -> None:
        pauses = backoff(_LEAST_PAUSE_S, _MOST_PAUSE_S)
        while not self._ending:
            began = time.monotonic()
            if self._start():
                logger.info("Ray is running")
                (self._folder / UP).touch()
                self._watch()
                (self._folder / UP).unlink(missing_ok=True)
            if self._ending:
                self._end_raylets()
                return
            kill_below(os.getpid())
            if time.monotonic() - began > _STEADY_S:
                pauses = backoff(_LEAST_PAUSE_S, _MOST_PAUSE_S)
            self._wait(next(pauses))

    def _start(self) -> bool:
        """Run `ray start`, which leaves its processes to us; return whether it succeeded."""
        shutil.rmtree(self._temp, ignore_errors=True)
        self._temp.mkdir(mode=0o700)
        env = os.environ | ENVIRONMENT | {"RAY_AUTH_TOKEN_PATH": str(self._folder / TOKEN)}
        env |= {SUPERVISOR_PID: str(os.getpid()), FOLDER: str(self._folder)}
        starter = subprocess.Popen(
            ray_argv(self._options, self._temp), env=env, stdin=subprocess.DEVNULL, start_new_session=True
        )
        deadline = time.monotonic() + _STARTS_WITHIN_S
        while starter.poll() is None and not self._ending and time.monotonic() < deadline:
            self._wait(1.0)
        if starter.returncode != 0 and not self._ending:
            logger.warning("Ray did not start (exit code %s); trying again", starter.returncode)
        return starter.returncode == 0

    def _watch(self) -> None:
        """Wait until the daemon is to end, or a vital process of Ray has ended; kill orphans meanwhile."""
        known = {child.pid: child.name() for child in psutil.Process().children()}
        vital = {pid for pid, name in known.items() if name in _VITAL}
        if not vital:
            logger.warning("Ray ended right after its start")
        while vital and not self._ending:
            reap()
            children = {child.pid for child in psutil.Process().children()}
            if dead := vital - children:
                logger.warning("%s ended; starting Ray again", " and ".join(known[pid] for pid in dead))
                return
            # Children that appear later are orphans, left by a killed worker of Ray.
            for orphan in children - set(known):
                kill_below(orphan)
                with suppress(ProcessLookupError):
                    os.kill(orphan, signal.SIGKILL)
            self._wait(_ORPHANS_EVERY_S)

    def _end_raylets(self) -> None:
        """Terminate the raylets, which tell the head that this machine leaves; otherwise it would notice only later."""
        raylets = [child for child in psutil.Process().children() if child.name() in _VITAL]
        for process in raylets:
            process.terminate()
        deadline = time.monotonic() + _GOODBYE_S
        while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in raylets):
            if time.monotonic() > deadline:
                break
            self._wait(0.2)

    def _wait(self, timeout_s: float | None) -> None:
        """Wait for a signal."""
        readable, _, _ = select.select([self._wake_r], [], [], timeout_s)
        if readable:
            os.read(self._wake_r, 4096)


def ray_argv(options: argparse.Namespace, temp: Path) -> list[str]:
    argv = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--temp-dir={temp}", "--num-cpus=0", "--num-gpus=0",
            "--object-store-memory=78643200", "--include-log-monitor=false", "--dashboard-agent-listen-port=0"]  # fmt: skip
    if options.address:
        argv.append(f"--node-ip-address={options.address}")
    if options.join:
        resources = {f"{MACHINE_RESOURCE}{options.machine}": 1, SLOT_RESOURCE: options.slots}
        return [*argv, f"--address={options.join}", f"--resources={json.dumps(resources)}"]
    return [*argv, "--head", f"--port={options.port}", "--include-dashboard=true", "--dashboard-host=127.0.0.1",
            f"--dashboard-port={options.dashboard_port}", "--no-monitor", "--disable-usage-stats"]  # fmt: skip


def temp_dir(folder: Path) -> Path:
    """Return a folder for Ray's files; in /tmp if `folder` is too long, because socket paths have at most 107 characters."""
    if len(os.fsencode(folder)) <= _LONGEST_FOLDER:
        return folder / "t"
    return Path("/tmp") / f"shoal-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]}"  # noqa: S108


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m shoal.engines.ray.daemon", description=__doc__)
    parser.add_argument(
        "--home",
        type=Path,
        required=True,
        help="Shoal's directory on this machine; its file ray/token is the cluster's token",
    )
    parser.add_argument(
        "--address", help="address of this machine for the others (default: that of the route to the head)"
    )
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--head", action="store_true", help="run the head of the cluster")
    kind.add_argument("--join", metavar="HOST:PORT", help="head to join")
    kind.add_argument("--stop", action="store_true", help="end the daemon that runs here and everything it started")
    parser.add_argument("--port", type=int, help="port of the head that machines join at")
    parser.add_argument("--dashboard-port", type=int, help="loopback port of the head's Jobs REST API")
    parser.add_argument("--machine", help="this machine's name in the pool")
    parser.add_argument("--slots", type=int, default=1)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
