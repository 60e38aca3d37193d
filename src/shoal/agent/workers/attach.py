"""Shells inside a running job: an SSH server in the sandbox of a worker, with its environment, reached through the gateway.

`python -m shoal.agent.workers.attach PID FOLDER` enters the sandbox of that process, drops to its privileges, and becomes the
SSH server. FOLDER is the node's work directory.
"""

from __future__ import annotations

import marshal
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from shoal.agent.lease.lease import Tunnel
from shoal.agent.node.workdir import SANDBOX, WorkDir
from shoal.agent.sandbox import namespaces
from shoal.agent.wire import LEASE_SOCKET, Launch
from shoal.agent.workers import parent as worker_parent
from shoal.agent.workers.stacks import rank_processes
from shoal.core.errors import NotAllowedNow

SERVER_ENV = "SHOAL_LEASE_SERVER"
"""Copy of shoal.agent.lease.ssh_server.SERVER_ENV; importing that module needs asyncssh."""
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9


class AttachServer:
    """SSH server inside a worker's sandbox, with its tunnel to the gateway. Ends with the agent, or when closed."""

    def __init__(self, launch: Launch, details: dict[str, Any], work: WorkDir):
        worker, self._details = _worker(), details
        folder = work.tmp / "attach"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / LEASE_SOCKET).unlink(missing_ok=True)
        if (user := _read_sandbox(work.root).get("uid")) is not None:
            os.chown(folder, user, user)
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(worker), str(work.root)],
            # Not the worker's environment yet: PYTHONPATH or LD_PRELOAD of the job would run its code outside the sandbox.
            env={**os.environ, SERVER_ENV: str(details["server"]), "SHOAL_SPOOL": str(folder)},
            stdin=subprocess.DEVNULL,
        )
        self._tunnel = Tunnel(launch, details, folder)
        self._tunnel.start()

    def serves(self, details: dict[str, Any]) -> bool:
        """Return whether this server still runs and was started with the same gateway and keys."""
        same = all(details[fact] == self._details[fact] for fact in ("gateway_port", "gateway_key", "public_key"))
        return same and self._process.poll() is None

    def close(self) -> None:
        self._tunnel.close()
        self._process.kill()
        self._process.wait()


def _worker() -> int:
    """Return the pid of the lowest rank, or of the launcher if it has not started any rank yet."""
    ranks = rank_processes(os.getpid())
    if ranks:
        return ranks[min(ranks)]
    marked = [pid for pid in worker_parent.descendants(os.getpid()) if "SHOAL_SPOOL" in _env(pid)]
    if not marked:
        raise NotAllowedNow("No worker is running on this node now.")
    return marked[0]


def _env(pid: int) -> dict[str, str]:
    try:
        block = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (os.fsdecode(entry).partition("=") for entry in block.split(b"\0"))
    return {name: value for name, mark, value in pairs if mark}


def _read_sandbox(root: Path) -> dict[str, Any]:
    """Return the description of the job's sandbox; empty if the job sees the machine's files."""
    try:
        found: dict[str, Any] = marshal.loads((root / SANDBOX).read_bytes())  # noqa: S302  the agent wrote it
        return found
    except OSError:
        return {}


def main(pid: int, root: Path) -> None:
    """Enter the namespaces of a process, drop to its privileges and exec the SSH server there."""
    sandbox = _read_sandbox(root)
    for entry in sandbox.get("entries", []):
        Path(entry).write_text("0")
    worker_parent.prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    env = _env(pid) | {name: os.environ[name] for name in (SERVER_ENV, "SHOAL_SPOOL")}
    flags = namespaces.differing(pid)
    folder = os.readlink(f"/proc/{pid}/cwd")  # noqa: PTH115
    inside = _pid_inside(pid)
    namespaces.enter(pid, flags)
    if flags & namespaces.PID and (child := os.fork()):
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
    if flags & namespaces.PID:
        worker_parent.prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    if flags:
        namespaces.lower_to(inside, debugging=not sandbox)
    os.chdir(folder)
    os.execve(sys.executable, [sys.executable, "-m", "shoal.agent.lease.ssh_server"], env)  # noqa: S606


def _pid_inside(pid: int) -> int:
    """Return the pid that a process has in its own pid namespace."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("NSpid:")).split()[-1])


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
