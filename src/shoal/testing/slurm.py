"""Slurm cluster for tests: a controller and several nodes, all on this machine, removed at the end of the block.

Needs root and Debian's slurmctld, slurmd, slurm-client and munge; `missing()` returns what is missing.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from shoal.testing.hosts import Host, Lan
from shoal.testing.patience import patient

_TOOLS = {"slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client", "munged": "munge"}
_START_S = 60.0
_CONF = """
ClusterName=shoal
SlurmctldHost={host}({address})
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000
MpiDefault=none
GresTypes=gpu
MailProg=/bin/true
ReturnToService=2
KillWait=5
MessageTimeout=3
UnkillableStepTimeout=20
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=closed Nodes=ALL Default=NO MaxTime=INFINITE State=DOWN
"""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random")
"""Files that stand for GPUs. Any files work, because nothing uses them."""
# A container has no systemd that could create a cgroup.
_CGROUP = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"


def missing() -> str | None:
    """Return why this machine cannot run a cluster, as a reason to skip tests; None if it can."""
    if os.geteuid() != 0:
        return "a private Slurm cluster needs root"
    absent = sorted({package for tool, package in _TOOLS.items() if shutil.which(tool, path=_path()) is None})
    return f"needs Slurm: apt-get install {' '.join(absent)}" if absent else None


class Cluster:
    """Slurm cluster. Commands find it through `env`; its nodes are named c1, c2 and so on."""

    def __init__(self, folder: Path, nodes: int, cpus: int, gpus: int = 0, net: Lan | None = None):
        """Write the configuration. `gpus` are fake, but Slurm assigns them. With a `net`, its hosts are the nodes."""
        self.folder, self.cpus, self.gpus, self._net = folder, cpus, gpus, net
        self.names = [host.name for host in net.hosts] if net else [f"c{n + 1}" for n in range(nodes)]
        self.env = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._write()

    def start(self) -> None:
        (self.folder / "munge.key").write_bytes(secrets.token_bytes(128))
        (self.folder / "munge.key").chmod(0o400)
        self._daemon("munged", "munged", "--foreground", "--force", f"--socket={self.folder}/munge.sock",
                     f"--key-file={self.folder}/munge.key", f"--pid-file={self.folder}/munged.pid",
                     f"--log-file={self.folder}/munged.log", f"--seed-file={self.folder}/munged.seed")  # fmt: skip
        self.start_controller()
        for name in self.names:
            self.start_node(name)
        self._until(lambda: self.run("sinfo", "-h", "-N", "-t", "idle", "-p", "main", "-o", "%N").split() == self.names)

    def start_controller(self) -> None:
        self._daemon("slurmctld", "slurmctld", "-D")
        self._until(self._answers)

    def start_node(self, name: str) -> None:
        """Start the slurmd of a node; also after its host has been down."""
        if name in self._daemons:
            self._daemons.pop(name).wait(10)
        self._daemon(name, "slurmd", "-D", "-N", name, host=self._net[name] if self._net else None)

    def stop_controller(self) -> None:
        """Stop the controller: Slurm does not answer any more, but running jobs continue."""
        daemon = self._daemons.pop("slurmctld")
        daemon.terminate()
        daemon.wait(30)

    def run(self, *argv: str) -> str:
        done = subprocess.run(argv, env=self._env(), capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise AssertionError(f"{' '.join(argv)}: {done.stderr}")
        return done.stdout

    def queue(self) -> list[str]:
        """Return the names of the jobs in the queue."""
        return self.run("squeue", "-h", "-o", "%j").split()

    def close(self) -> None:
        with suppress(AssertionError, subprocess.SubprocessError):
            self.run("scancel", "--user=root")
            self._until(lambda: not self.queue(), 30)
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()
            daemon.wait()
        for process in self.processes():
            with suppress(psutil.Error):
                process.kill()

    def processes(self) -> list[psutil.Process]:
        """Return the processes of its jobs, by their environment; a process that changed it is not found."""
        found, mine = [], os.getpid()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                env = process.environ()
                ours = env.get("SLURM_CONF") == self.env["SLURM_CONF"] and "SLURM_JOB_ID" in env
                if ours and process.pid != mine and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _write(self) -> None:
        ports = _free_ports(len(self.names) + 1)
        host, address = socket.gethostname().partition(".")[0], self._net.address if self._net else "127.0.0.1"
        nodes = []
        for name, port in zip(self.names, ports[1:], strict=True):
            where = f"{name} NodeAddr={self._net[name].address}" if self._net else f"{host} NodeAddr={address}"
            size = f"CPUs={self.cpus}{f' Gres=gpu:{self.gpus}' if self.gpus else ''}"
            nodes.append(f"NodeName={name} NodeHostname={where} Port={port} {size} State=UNKNOWN")
        conf = _CONF.format(host=host, address=address, port=ports[0], folder=self.folder, nodes="\n".join(nodes))
        (self.folder / "slurm.conf").write_text(conf)
        (self.folder / "cgroup.conf").write_text(_CGROUP)
        (self.folder / "gres.conf").write_text("".join(f"Name=gpu File={d}\n" for d in _DEVICES[: self.gpus]))
        for name in ("state", *(f"spool.{n}" for n in self.names)):
            (self.folder / name).mkdir()

    def _env(self) -> dict[str, str]:
        return {**os.environ, **self.env, "PATH": _path()}

    def _daemon(self, name: str, program: str, *args: str, host: Host | None = None) -> None:
        with (self.folder / f"{name}.out").open("ab") as log:
            start = host.popen if host else _popen
            program = shutil.which(program, path=_path()) or program
            self._daemons[name] = start(
                program,
                *args,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env(),
                start_new_session=True,
            )

    def _answers(self) -> bool:
        try:
            return "UP" in self.run("scontrol", "ping")
        except AssertionError:
            return False

    def _until(self, condition: Callable[[], bool], timeout_s: float = _START_S) -> None:
        deadline = time.monotonic() + patient(timeout_s)
        while not condition():
            ended = [name for name, daemon in self._daemons.items() if daemon.poll() is not None]
            if ended or time.monotonic() > deadline:
                raise AssertionError(f"Slurm did not start ({', '.join(ended) or 'in time'}):\n{self._log_ends()}")
            time.sleep(0.05)

    def _log_ends(self) -> str:
        logs = [*self.folder.glob("*.log"), *self.folder.glob("*.out")]
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-1500:]}" for log in logs)


@contextmanager
def slurm_cluster(*, nodes: int = 2, cpus: int = 4, gpus: int = 0, net: Lan | None = None) -> Iterator[Cluster]:
    # Short, because the path of munge's socket may have at most 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="sl-"))
    folder.chmod(0o755)
    cluster = Cluster(folder, nodes, cpus, gpus, net)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)


def _popen(*argv: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(argv, **options)


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
