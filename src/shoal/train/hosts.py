"""Machines by address: whether one is this machine, and how to run commands on another (by ssh without a password)."""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from shoal.core.errors import Refused, UsageError
from shoal.train import probe

_SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new", "-o", "ServerAliveInterval=15")
_PATIENCE_S = 60.0
"""Seconds to wait for a probe over ssh."""


class Host(NamedTuple):
    """Machine. `address` is a host name or IP for ssh, optionally as account@host; empty means this machine."""

    address: str = ""

    def __str__(self) -> str:
        return self.address or "this machine"

    @property
    def name(self) -> str:
        """Address without the account."""
        return self.address.rpartition("@")[2]

    @property
    def is_here(self) -> bool:
        """True if this host is the local machine."""
        return not self.name or self.name in _own_names() or self.name.startswith("127.")

    def command(self, argv: Sequence[str], cwd: str | None = None) -> list[str]:
        """Return the local command that runs `argv` on this host. On this machine the caller must start it in `cwd`."""
        if self.is_here:
            return list(argv)
        there = shlex.join(argv)
        return [*_SSH, self.address, f"cd {shlex.quote(cwd)} && exec {there}" if cwd else there]

    def examine(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the result of shoal.train.probe on this host; raise Refused if the host or its Python does not answer."""
        if self.is_here:
            return probe.examine(asked)
        import json

        source = resources.files("shoal.train").joinpath("probe.py").read_text()
        command = self.command([sys.executable, "-", json.dumps(asked)])
        try:
            done = subprocess.run(
                command, input=source, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Refused(
                f"{self} does not answer: {error}", hint=f"check the connection: ssh {self.address} true"
            ) from None
        found = probe.answer_in(done.stdout)
        if found is None:
            why = (done.stderr or done.stdout).strip().splitlines()
            raise Refused(
                f"{self} cannot run {sys.executable}: {why[-1] if why else f'exit code {done.returncode}'}",
                hint=f"ssh {self.address} must work without a password, and {sys.executable} must exist there",
            )
        return found


def read_servers(files: str | Iterable[str]) -> list[tuple[Host, list[int]]]:
    """Return hosts and slots from servers files with lines like `10.0.0.5` or `10.0.0.5:0,1,2`; # starts a comment."""
    names = files.split(",") if isinstance(files, str) else list(files)
    found: dict[Host, list[int]] = {}
    for name in filter(None, (n.strip() for n in names)):
        path = Path(name).expanduser()
        if not path.is_file():
            raise UsageError(f"there is no servers file {name}", hint="one server per line: 10.0.0.5 or 10.0.0.5:0,1,2")
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for word in line.partition("#")[0].split():
                host, slots = _server(word, f"{name}:{number}")
                found[host] = found.get(host, []) + slots
    if not found:
        raise UsageError(f"{', '.join(names)} names no server", hint="one server per line: 10.0.0.5 or 10.0.0.5:0,1,2")
    return list(found.items())


def own_address(towards: str = "10.255.255.255") -> str:
    """Return the address at which other machines reach this one; loopback without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probing:
        try:
            probing.connect((towards, 1))
            address: str = probing.getsockname()[0]
        except OSError:
            return "127.0.0.1"
    return address


def _server(word: str, where: str) -> tuple[Host, list[int]]:
    address, _, numbers = word.partition(":")
    slots = [n for n in numbers.split(",") if n]
    if not address or not all(n.isdigit() for n in slots):
        raise UsageError(f"{where}: {word!r} is not a server", hint="write 10.0.0.5 or 10.0.0.5:0,1,2")
    return Host(address), [int(n) for n in slots]


@cache
def _own_names() -> frozenset[str]:
    names = {"localhost", "::1", socket.gethostname(), own_address()}
    return frozenset(names | set(probe.interfaces().values()))
