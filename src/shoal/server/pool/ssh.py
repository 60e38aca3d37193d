"""Access to machines by SSH: the OpenSSH client, configured as for the server's user, with its own known_hosts file."""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from shoal.core.errors import MissingExtra, Refused

NO_PYTHON = 97
CONNECT_S = 10
_MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"
_PYTHONS = (f"python{_MINOR}", "python3", "python", f"/usr/local/bin/python{_MINOR}", f"~/.local/bin/python{_MINOR}")
_OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": str(CONNECT_S),
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
    "ForwardAgent": "no",
    "ClearAllForwardings": "yes",
    "LogLevel": "ERROR",
    "HashKnownHosts": "no",
}
Say = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ssh:
    """SSH connection data of one machine, and the programs run there."""

    user: str | None
    host: str
    port: int | None
    key: str | None
    known_hosts: Path
    is_new: bool
    """True when the machine is added: its host key is accepted as it is, this once."""

    @property
    def destination(self) -> str:
        return f"{self.user}@{self.host}" if self.user else self.host

    def argv(self, command: str) -> list[str]:
        options = _OPTIONS | {
            "UserKnownHostsFile": str(self.known_hosts),
            "StrictHostKeyChecking": "accept-new" if self.is_new else "yes",
        }
        return [
            "ssh",
            "-T",
            *(f"-o{k}={v}" for k, v in options.items()),
            *self._where(),
            "--",
            self.destination,
            command,
        ]

    def address(self) -> str:
        """Return the machine's IP address, also for an alias of the SSH configuration."""
        shown = subprocess.run(
            ["ssh", "-G", *self._where(), "--", self.destination], capture_output=True, text=True, check=False
        )
        found = re.search(r"^hostname (\S+)$", shown.stdout, re.MULTILINE)
        name = found[1] if found else self.host
        try:
            return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError:
            raise Refused(f"The name '{name}' cannot be resolved on the server.", hint="Give its address.") from None

    def put(self, data: bytes, path: str, timeout_s: float = 600) -> None:
        """Write a file on the machine, completely or not at all."""
        quoted, aside = shlex.quote(path), shlex.quote(f"{path}.part")
        folder = shlex.quote(str(Path(path).parent))
        command = f"umask 077; mkdir -p {folder} && cat > {aside} && mv {aside} {quoted}"
        done = subprocess.run(self.argv(command), input=data, capture_output=True, timeout=timeout_s, check=False)
        if done.returncode != 0:
            raise self._failure(done.returncode, done.stderr.decode(errors="replace"))

    def do(
        self, task: dict[str, Any], *, python: str | None = None, say: Say | None = None, timeout_s: float = 60
    ) -> Any:
        """Run a function of `bootstrap` on the machine and return its result. The program is sent over stdin."""
        with tempfile.TemporaryFile("w+") as errors:
            try:
                child = subprocess.Popen(
                    self.argv(_find_python(python)),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    start_new_session=True,
                )
            except FileNotFoundError:
                raise MissingExtra("There is no SSH client on the server.", hint="apt install openssh-client") from None
            overdue = threading.Timer(timeout_s, child.kill)
            overdue.start()
            try:
                last = _run_program(child, program(task), say)
            finally:
                code = child.wait()
                is_late = not overdue.is_alive()
                overdue.cancel()
            errors.seek(0)
            if "done" in last:
                return last["done"]
            if "error" in last:
                raise Refused(f"{self.destination}: {last['error']}")
            if is_late:
                raise Refused(f"{self.destination} took longer than {timeout_s:.0f} s.", hint=self.try_it)
            raise self._failure(code, errors.read())

    @property
    def try_it(self) -> str:
        """Command with which a person can reproduce the problem."""
        return shlex.join(["ssh", *self._where(), self.destination])

    def _where(self) -> list[str]:
        key = ["-i", str(Path(self.key).expanduser()), "-oIdentitiesOnly=yes"] if self.key else []
        return [*(["-p", str(self.port)] if self.port else []), *key]

    def _failure(self, code: int, output: str) -> Refused:
        if code == NO_PYTHON:
            return Refused(
                f"{self.destination} has no Python {_MINOR}, the one this server runs on.",
                hint=f"Install it there (apt install python{_MINOR} python{_MINOR}-venv), or name it: --python PATH",
            )
        last = output.strip().splitlines()[-1] if output.strip() else f"ssh ended with {code}"
        if "REMOTE HOST IDENTIFICATION HAS CHANGED" in output or "Host key verification failed" in output:
            forget = shlex.join(["ssh-keygen", "-R", self.host, "-f", str(self.known_hosts)])
            return Refused(
                f"{self.destination} presents another host key than before.", hint=f"If that is expected: {forget}"
            )
        if "Permission denied" in output:
            key = f"-i {self.key} " if self.key else ""
            hint = f"As the server's user: ssh-copy-id {key}{self.destination}"
            return Refused(f"{self.destination} refused the login: {last}.", hint=hint)
        return Refused(f"{self.destination} cannot be reached: {last}.", hint=self.try_it)


def program(task: dict[str, Any], entry: str = "main") -> str:
    """Return the program for a machine as one text, with the instructions it must run."""
    here = Path(__file__).parent
    parts = [(here / name).read_text() for name in ("probe.py", "bootstrap.py")]
    lines = "\n".join(parts).splitlines()
    kept = [line for line in lines if not line.startswith(("from shoal.", "from __future__ "))]
    return "\n".join(["from __future__ import annotations", *kept, f"sys.exit({entry}({task!r}))", ""])


def _find_python(python: str | None) -> str:
    """Return a shell command that finds a Python of the server's version and runs the program from stdin with it."""
    check = f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]!r})"
    if python:
        return f"{_try([python], check)} exit {NO_PYTHON}"
    # Prefer a Python that can create virtual environments.
    return f"{_try(_PYTHONS, f'import ensurepip, venv; {check}')} {_try(_PYTHONS, check)} exit {NO_PYTHON}"


def _try(pythons: Iterable[str], check: str) -> str:
    test = f'"$p" -c {shlex.quote(check)} </dev/null >/dev/null 2>&1'
    return f'for p in {" ".join(map(_shell_path, pythons))}; do if {test}; then exec "$p" -; fi; done;'


def _shell_path(path: str) -> str:
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


def _run_program(child: subprocess.Popen[str], text: str, say: Say | None) -> dict[str, Any]:
    """Send the program and pass on its messages; return the last one, which is the result."""
    to_it, from_it = cast(IO[str], child.stdin), cast(IO[str], child.stdout)
    with suppress(BrokenPipeError):
        to_it.write(text)
        to_it.close()
    last: dict[str, Any] = {}
    for line in from_it:
        with suppress(ValueError):
            words = json.loads(line)
            last = words if isinstance(words, dict) else last
            if say is not None:
                say(last)
    return last
