"""Runs Slurm's programs on this machine or on a login node over SSH. Secrets are passed by stdin only."""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from shoal.agent.workers.runtime import base_env
from shoal.core.errors import Refused, Unreachable

_TIMEOUT_S = 30.0
_SSH_FAILED = 255
_SSH = {
    "BatchMode": "yes",
    "ConnectTimeout": "10",
    "ServerAliveInterval": "5",
    "StrictHostKeyChecking": "accept-new",
    "ForwardAgent": "no",
    "LogLevel": "ERROR",
}
_LONGEST_DIR = 107 - len("/") - 40 - len(".") - 16
"""Longest folder for ssh's control socket: its path has at most 107 bytes, and ssh adds a hash and a suffix."""


class Site:
    """The machine where Slurm's programs run."""

    def __init__(self, login: str | None = None, *, key: str | None = None, ssh_dir: Path | None = None):
        """Set up without connecting. `login` is user@host of a login node; `ssh_dir` is for control sockets and known hosts."""
        self._login, self._key, self._ssh_dir = login, key, ssh_dir

    @property
    def where(self) -> str:
        return self._login or "this machine"

    def run(self, argv: Sequence[str], stdin: bytes = b"", timeout_s: float = _TIMEOUT_S) -> str:
        """Run a program and return its output; raise `Refused` with its error output if it fails."""
        try:
            done = subprocess.run(
                self._here(argv), input=stdin, capture_output=True, timeout=timeout_s, env=_env(), check=False
            )
        except FileNotFoundError:
            raise Refused(f"There is no program '{argv[0]}' on {self.where}: is Slurm installed there?") from None
        except subprocess.TimeoutExpired:
            raise Unreachable(f"{argv[0]} on {self.where} did not answer within {timeout_s:.0f} s.") from None
        except OSError as error:
            raise Refused(f"{argv[0]} cannot be run: {error}.") from error
        if done.returncode == 0:
            return done.stdout.decode(errors="replace")
        words = " ".join(done.stderr.decode(errors="replace").split())[-500:]
        if self._login and done.returncode == _SSH_FAILED:
            raise Unreachable(f"{self._login} cannot be reached by SSH: {words}", hint=f"ssh {self._login} true")
        raise Refused(f"{argv[0]} on {self.where}: {words or f'exit code {done.returncode}'}")

    def shell(self, script: str, *args: str, stdin: bytes = b"") -> str:
        """Run a shell script, which gets the arguments as $1, $2 and so on; return its output."""
        return self.run(["sh", "-c", script, "sh", *args], stdin)

    def put(self, folder: str, files: Mapping[str, bytes]) -> None:
        """Write files below a folder, readable by their owner only."""
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as archive:
            for parent in dict.fromkeys(str(PurePosixPath(name).parent) for name in files):
                entry = tarfile.TarInfo(parent)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o700
                archive.addfile(entry)
            for name, content in files.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(content), 0o600
                archive.addfile(entry, io.BytesIO(content))
        unpack = 'umask 077 && mkdir -p "$1" && tar --no-same-owner -C "$1" -xpf -'
        self.shell(unpack, folder, stdin=data.getvalue())

    def may_have(self, folder: str, name: str) -> bool:
        """Return whether such an entry may exist; for a login node always True, because checking would need a connection."""
        return self._login is not None or (Path(folder) / name).exists()

    def start_detached(self, argv: Sequence[str], log: str) -> None:
        """Start a program that outlives this process."""
        self.shell('log=$1; shift; setsid "$@" >>"$log" 2>&1 </dev/null &', log, *argv)

    def _here(self, argv: Sequence[str]) -> list[str]:
        if self._login is None:
            return list(argv)
        options = _SSH | ({"UserKnownHostsFile": f"{self._ssh_dir}/known_hosts"} if self._ssh_dir else {})
        if self._ssh_dir is not None:
            self._ssh_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            if len(str(self._ssh_dir)) <= _LONGEST_DIR:
                # Share one connection: a query per second must not mean a login per second.
                options |= {"ControlMaster": "auto", "ControlPath": f"{self._ssh_dir}/%C", "ControlPersist": "60"}
        identity = ["-i", self._key] if self._key else []
        return [
            "ssh",
            "-T",
            *(f"-o{k}={v}" for k, v in options.items()),
            *identity,
            "--",
            self._login,
            shlex.join(argv),
        ]


def _env() -> dict[str, str]:
    """Return the environment for Slurm's programs. sbatch passes it on to the job, so it has no secrets and no SLURM_*."""
    return base_env(os.environ) | {k: v for k, v in os.environ.items() if k in ("SLURM_CONF", "SSH_AUTH_SOCK")}
