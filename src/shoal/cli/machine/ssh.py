"""`shoal machine ssh` and `cp`: run OpenSSH's `ssh` and `scp` with a temporary key and a certificate from the server."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from shoal.cli.shared.output import out
from shoal.cli.shared.session import connect
from shoal.core.durations import duration
from shoal.core.errors import NotAllowedNow, NotFound, ShoalError, Unreachable, UsageError

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.core.attach import AttachView
    from shoal.core.leases import LeaseView

_LOST = 255
"""Exit code of ssh when its connection is lost."""
_PATIENCE_S = 600.0
_PAUSE_S = 1.0
_READY_S = 120.0
_REACH_S = 1.0


def ssh(
    lease: str,
    /,
    *command: str,
    forward: Annotated[
        list[str] | None, Parameter(name=("--forward", "-L"), negative=(), consume_multiple=False)
    ] = None,
) -> int:
    """Open a shell on a lease, or run a command there and exit with its exit code.

    You need no SSH key: a temporary key is created, and the server signs it for
    a few minutes. If the connection of a shell is lost, a new shell is opened
    when the lease can be reached again.

    For example:

      shoal machine ssh box
      shoal machine ssh box -- nvidia-smi -L
      shoal machine ssh box -L 8888:localhost:8888

    Parameters
    ----------
    lease
        Name or id of the lease.
    command
        Command to run on the lease instead of a shell, after `--`.
    forward
        Forward a local port to the lease, as PORT:HOST:PORT (repeatable).
    """
    ports = [word for item in forward or () for word in ("-L", item)]
    is_shell = not command and sys.stdin.isatty()
    while True:
        with connect() as client, opened(client, lease) as (view, options):
            if is_shell and view.port == view.direct_port:
                out.info(
                    f"[shoal] lease '{view.name}' ends in {duration(view.left_s or 0)}"
                )  # else the gateway says it
            code = subprocess.run(
                ["ssh", *options, *ports, f"{view.login}@{view.host}", *command], check=False
            ).returncode
            if code != _LOST or not is_shell or not _comes_back(client, view.id):
                return code


def cp(source: str, destination: str, /) -> int:
    """Copy a file or folder to or from a lease.

    For example:

      shoal machine cp train.py box:
      shoal machine cp box:results ./results

    Parameters
    ----------
    source
        Local PATH, or LEASE:PATH.
    destination
        LEASE:PATH, or local PATH.
    """
    (here, there), to_lease = _sides(source, destination)
    lease, _, path = there.partition(":")
    with connect() as client, opened(client, lease) as (view, options):
        remote = f"{view.login}@{view.host}:{path}"
        words = [here, remote] if to_lease else [remote, here]
        return subprocess.run(["scp", "-r", "-q", *options, "--", *words], check=False).returncode


@contextmanager
def opened(client: Client, lease: str) -> Iterator[tuple[LeaseView, list[str]]]:
    """Yield a running lease and the options for ssh and scp to reach it; they are valid for a few minutes."""
    demand_ssh()
    view = client.leases.wait(lease, timeout_s=_READY_S)
    if view.status != "running":
        reason = f": {view.reason}" if view.reason else ""
        hint = f"{out.prog} machine {'rent' if view.status == 'ended' else f'restart {view.name}'}"
        raise NotAllowedNow(f"Lease '{view.name}' is {view.status}{reason}.", hint=hint)
    with new_key() as (key, public):
        signed = client.leases.certificate(view.id, public)
        Path(f"{key}-cert.pub").write_text(signed.certificate + "\n")
        view = nearest(view)
        yield view, options(view, key)


def nearest(view: LeaseView) -> LeaseView:
    """Return the lease with the address of its machine if that can be reached directly, else with the gateway's address."""
    if view.direct_host is None or view.direct_port is None:
        return view
    try:
        with socket.create_connection((view.direct_host, view.direct_port), _REACH_S) as connection:
            is_open = connection.recv(4) == b"SSH-"
    except OSError:
        return view
    there = {"host": view.direct_host, "port": view.direct_port, "host_key": view.own_host_key}
    return view.model_copy(update=there) if is_open else view


def demand_ssh() -> None:
    for program in ("ssh", "scp", "ssh-keygen"):
        if shutil.which(program) is None:
            raise NotFound(f"The program `{program}` is not installed.", hint="apt install openssh-client")


@contextmanager
def new_key() -> Iterator[tuple[Path, str]]:
    """Create a temporary SSH key; yield its file and its public key line. Both are deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="shoal-ssh-") as folder:
        key = Path(folder) / "key"
        made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "shoal", "-f", str(key)]
        subprocess.run(made, check=True, stdin=subprocess.DEVNULL)
        yield key, key.with_suffix(".pub").read_text()


def options(view: LeaseView | AttachView, key: Path) -> list[str]:
    """Return the options for ssh and scp: the key to use, and the host key to expect."""
    known = key.with_name("known_hosts")
    known.write_text(f"[{view.host}]:{view.port} {view.host_key}\n{view.host} {view.host_key}\n")
    settings = {
        "Port": view.port,
        "IdentityFile": key,
        "IdentitiesOnly": "yes",
        "PasswordAuthentication": "no",
        "UserKnownHostsFile": known,
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "ServerAliveInterval": 5,
        "ServerAliveCountMax": 3,
        "LogLevel": "ERROR",
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def _comes_back(client: Client, lease: str) -> bool:
    """Wait until the lease can be reached again; return False if it has ended or takes longer than `_PATIENCE_S`."""
    out.info("The connection was lost; reconnecting. Press Ctrl-C to give up.")
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        try:
            view = client.leases.get(lease)
            if view.status == "running":
                return True
            if view.status in ("ended", "offline"):
                out.info(f"Lease '{view.name}' is {view.status}: {view.reason or ''}")
                return False
        except (Unreachable, OSError):
            pass
        except ShoalError as error:
            out.error(error.message, hint=error.hint)
            return False
        time.sleep(_PAUSE_S)
    return False


def _sides(source: str, destination: str) -> tuple[tuple[str, str], bool]:
    """Return (local path, LEASE:PATH), and whether the copy goes to the lease."""
    is_there = [_is_there(word) for word in (source, destination)]
    if is_there == [False, True]:
        return (source, destination), True
    if is_there == [True, False]:
        return (destination, source), False
    problem = "Neither path is on a lease." if not any(is_there) else "Both paths are on leases."
    raise UsageError(problem, hint=f"{out.prog} machine cp FILE LEASE:PATH")


def _is_there(word: str) -> bool:
    """Check whether a path is remote by scp's rule: a colon before any slash."""
    head, colon, _ = word.partition(":")
    return bool(colon) and "/" not in head and bool(head)
