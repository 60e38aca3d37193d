"""Leases on the wire: a share of a machine, rented to a person over SSH for a limited time."""

from __future__ import annotations

import base64
import binascii
import re
import shlex
from datetime import timedelta
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field, field_validator

from shoal.core.device_requirements import DeviceRequirements
from shoal.core.jobs import Device
from shoal.core.names import check_name
from shoal.core.schema import Schema, Utc, View

MAX_TIME = timedelta(days=7)
MIN_TIME, DEFAULT_TIME = timedelta(seconds=10), timedelta(hours=8)
MAX_LEASE_NAME = 48
"""Longest name of a lease. Shorter than other names, because its login and its job are named after it."""
_KEY_TYPE = re.compile(r"(?:sk-)?(?:ssh-|ecdsa-)[a-z0-9@.-]+")
_WEAK = ("ssh-dss",)

LeaseSeconds = Annotated[int, Field(ge=int(MIN_TIME.total_seconds()), le=int(MAX_TIME.total_seconds()))]


class LeaseStatus(StrEnum):
    WAITING = "waiting"
    """Waiting in the queue for slots."""
    STARTING = "starting"
    RUNNING = "running"
    OFFLINE = "offline"
    """Its machine or agent was lost. It can be restarted while it has time left."""
    ENDED = "ended"


def public_key(line: str) -> str:
    """Return a public key as `TYPE BASE64` without its comment; raise ValueError if it is invalid or of a weak type."""
    words = line.split()
    kind = words[0] if words else ""
    if len(words) < 2 or not _KEY_TYPE.fullmatch(kind):
        raise ValueError("an SSH public key looks like 'ssh-ed25519 AAAA… name'")
    try:
        blob = base64.b64decode(words[1], validate=True)
    except binascii.Error:
        raise ValueError(f"the {kind} key is damaged") from None
    inner = blob[4 : 4 + int.from_bytes(blob[:4], "big")].decode("ascii", "replace")
    if inner != kind:
        raise ValueError(f"the {kind} key is damaged")
    if kind in _WEAK or "cert" in kind:
        raise ValueError(f"keys of type {kind} are not accepted; create another: ssh-keygen -t ed25519")
    return f"{kind} {words[1]}"


PublicKey = Annotated[str, Field(max_length=16_384), AfterValidator(public_key)]


class LeaseRequest(DeviceRequirements):
    """A request to rent a share of a machine."""

    name: str | None = None
    """Name of the lease; None: a name is generated."""
    accels: int = Field(default=1, ge=1, le=1_024)
    device: Device = "auto"
    """Kind of slots, as for a job."""
    time_s: LeaseSeconds = int(DEFAULT_TIME.total_seconds())
    """Duration in seconds, counted from the moment the lease can be used."""
    datasets: list[str] = []
    source_id: str | None = None
    """Source (code) to provide on the machine."""
    ssh_keys: list[PublicKey] = Field(default=[], max_length=64)
    password: bool = False
    """Generate a password for the lease, if the server allows passwords."""
    priority: int = Field(default=0, ge=-100, le=100)
    prefer: list[str] = Field(default=[], max_length=1_000)
    """Machines to use if they have room."""
    restore: str | None = None
    """Snapshot to start from: its id, or the name of the lease it was taken from (the newest)."""

    @field_validator("name")
    @classmethod
    def _name(cls, value: str | None) -> str | None:
        if value is not None and len(check_name(value, "lease name")) > MAX_LEASE_NAME:
            raise ValueError(f"the name of a lease has at most {MAX_LEASE_NAME} characters")
        return value


class LeaseExtend(Schema):
    """A request for more time."""

    time_s: LeaseSeconds
    """Seconds to add. At most seven days can be left afterwards."""


class LeaseView(View):
    """A lease and how to connect to it."""

    id: str
    name: str
    status: LeaseStatus
    login: str
    """User name for ssh. The gateway finds the lease by it."""
    host: str
    port: int | None
    """Port of the SSH gateway; None while the gateway does not run."""
    host_key: str
    """Public key of the SSH gateway. It is the same for all leases and does not change."""
    own_host_key: str
    """Public key of the lease's own SSH server, seen with `ssh -J` and on a direct connection. Each lease has a new one."""
    direct_host: str | None = None
    direct_port: int | None = None
    """Port for direct connections without the gateway, from networks that can reach the machine; None if the server itself
    cannot reach it."""
    job: str
    """Name of the job that holds the lease's slots; the job's logs are the logs of the lease."""
    accels: int
    machine: str | None
    sandbox: str | None
    """Sandbox level that isolates the lease from the rest of its machine, and the protections that are not available there."""
    waiting: str | None
    """Reason why the lease waits for slots."""
    reason: str | None
    """Reason why the lease is offline or has ended."""
    created_by: str
    created_at: Utc
    started_at: Utc | None
    expires_at: Utc | None
    ended_at: Utc | None
    left_s: float | None
    has_password: bool

    @property
    def command(self) -> str:
        """Return the ssh command to paste into a terminal."""
        return ssh_command(self.login, self.host, self.port)

    @property
    def vscode_url(self) -> str:
        """Return the link that opens the lease in VS Code, through its Remote-SSH extension."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"vscode://vscode-remote/ssh-remote+{self.login}@{host}{f':{self.port}' if self.port else ''}/"


class LeaseEnding(View):
    """One of the user's leases that ends soon."""

    id: str
    name: str
    workspace: str
    workspace_id: str
    expires_at: Utc
    left_s: float


class LeaseCreated(LeaseView):
    """A new lease."""

    password: str | None
    """The generated password. It is shown only once; the server stores only its hash."""


class CertificateRequest(Schema):
    """A request for a short-lived SSH certificate."""

    public_key: PublicKey


class Certificate(View):
    """A short-lived SSH certificate."""

    certificate: str
    """Certificate in one line, as in a file that ends with -cert.pub."""
    expires_at: Utc


def ssh_command(login: str, host: str, port: int | None) -> str:
    return shlex.join(["ssh", f"{login}@{host}", "-p", str(port)])
