"""Leases on the wire: a share of a machine, rented to a person by SSH for a time."""

from __future__ import annotations

import base64
import binascii
import re
import shlex
from datetime import timedelta
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field, field_validator

from shoal.core.jobs import Device
from shoal.core.names import check_name
from shoal.core.schema import Schema, Utc, View

MAX_TIME = timedelta(days=7)
MIN_TIME, DEFAULT_TIME = timedelta(seconds=10), timedelta(hours=8)
MAX_LEASE_NAME = 48
"""Shorter than other names: its login and its job are called after it."""
_KEY_TYPE = re.compile(r"(?:sk-)?(?:ssh-|ecdsa-)[a-z0-9@.-]+")
_WEAK = ("ssh-dss",)

LeaseSeconds = Annotated[int, Field(ge=int(MIN_TIME.total_seconds()), le=int(MAX_TIME.total_seconds()))]


class LeaseStatus(StrEnum):
    WAITING = "waiting"
    """In the queue, for a slot."""
    STARTING = "starting"
    RUNNING = "running"
    OFFLINE = "offline"
    """Its machine or its agent was lost. It can be restarted, as long as it has time left."""
    ENDED = "ended"


def public_key(line: str) -> str:
    """A public key as `TYPE BASE64`, without its comment; ValueError if it is none, or a weak one."""
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
        raise ValueError(f"a key of type {kind} does not open a lease; make another: ssh-keygen -t ed25519")
    return f"{kind} {words[1]}"


PublicKey = Annotated[str, Field(max_length=16_384), AfterValidator(public_key)]


class LeaseAsk(Schema):
    """What a person wants to rent."""

    name: str | None = None
    """One is made up if none is given."""
    accels: int = Field(default=1, ge=1, le=1_024)
    device: Device = "auto"
    """Kind of slots, as for a job."""
    time_s: LeaseSeconds = int(DEFAULT_TIME.total_seconds())
    """Counted from when it can be used, not from when it is asked for."""
    datasets: list[str] = []
    source_id: str | None = None
    """Code to be there."""
    ssh_keys: list[PublicKey] = Field(default=[], max_length=64)
    password: bool = False
    """Make a password for it, where the server allows them."""
    priority: int = Field(default=0, ge=-100, le=100)
    prefer: list[str] = Field(default=[], max_length=1_000)
    """Machines to have it on where they have room."""
    restore: str | None = None
    """A snapshot to begin with: its id, or the name of the lease it was taken from (the newest)."""

    @field_validator("name")
    @classmethod
    def _name(cls, value: str | None) -> str | None:
        if value is not None and len(check_name(value, "lease name")) > MAX_LEASE_NAME:
            raise ValueError(f"a lease's name has at most {MAX_LEASE_NAME} characters")
        return value


class LeaseExtend(Schema):
    time_s: LeaseSeconds
    """To add. No more than seven days can be left."""


class LeaseView(View):
    id: str
    name: str
    status: LeaseStatus
    login: str
    """The user name to give to ssh: the gateway finds the lease by it."""
    host: str
    port: int | None
    """Of the gateway; None while there is none."""
    host_key: str
    """The gateway's public key, the same for all leases and for ever."""
    own_host_key: str
    """The lease's own, seen by `ssh -J` and on its machine's own port; new for every lease."""
    direct_host: str | None = None
    direct_port: int | None = None
    """Where it is reached without the gateway, from wherever its machine can be; None if the server itself cannot."""
    job: str
    """Name of the job that holds its slots; its logs are the lease's."""
    accels: int
    machine: str | None
    sandbox: str | None
    """How it is kept apart from everything else on its machine."""
    waiting: str | None
    reason: str | None
    """Why it is offline, or has ended."""
    created_by: str
    created_at: Utc
    started_at: Utc | None
    expires_at: Utc | None
    ended_at: Utc | None
    left_s: float | None
    has_password: bool

    @property
    def command(self) -> str:
        """What to paste into a terminal."""
        return ssh_command(self.login, self.host, self.port)


class LeaseEnding(View):
    """A lease of one's own with little time left."""

    id: str
    name: str
    workspace: str
    workspace_id: str
    expires_at: Utc
    left_s: float


class LeaseCreated(LeaseView):
    password: str | None
    """Shown once: only its hash is kept."""


class CertificateAsk(Schema):
    public_key: PublicKey


class Certificate(View):
    certificate: str
    """One line, as in a file that ends with -cert.pub."""
    expires_at: Utc


def ssh_command(login: str, host: str, port: int | None) -> str:
    return shlex.join(["ssh", f"{login}@{host}", "-p", str(port)])
