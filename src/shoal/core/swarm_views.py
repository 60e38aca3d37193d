"""Swarms on the wire: what people see of them, and what passes between the server and a machine that joins."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, field_validator

from shoal.core.names import check_name
from shoal.core.schema import Schema, Utc, View
from shoal.core.swarm import SwarmSpec, SwarmTerms

INVITATION_HEADER = "X-Shoal-Invitation"
MAX_LIFE_S = 365 * 86_400
KeeperState = Literal["off", "starting", "ready", "restarting"]
_PUBLIC_KEY = re.compile(r"[0-9a-f]{64}")


class SwarmState(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"


class PeerState(StrEnum):
    JOINING = "joining"
    """It fetches code and data, or the swarm's state."""
    TRAINING = "training"
    LEFT = "left"
    LOST = "lost"
    """Nothing has been heard of it for a while; it may come back."""
    KICKED = "kicked"


class PeerView(View):
    id: str
    name: str
    state: PeerState
    reason: str | None = None
    invitation: str
    """Id of the one it came by."""
    joined_at: Utc
    seen_at: Utc
    left_at: Utc | None = None
    round: int | None = None
    samples: int = 0
    """It has contributed, since it joined."""
    share: float = 0.0
    """Of all samples of the swarm's present peers."""
    samples_per_s: float | None = None
    loss: float | None = None
    """Mean of its last report."""
    mini_steps: int | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    client_mode: bool = False
    facts: dict[str, str] = {}
    """Versions, device, system: as the machine says."""


class RoundView(View):
    """One round of the swarm, as the keeper saw it."""

    round: int
    at: Utc
    loss: float | None = None
    samples: int | None = None
    alive: int | None = None
    performance: float | None = None
    """Samples a second, of all peers."""
    seconds: float | None = None
    averaged: float | None = None
    """Fraction of what was to be averaged that was."""
    bytes: int | None = None
    members: list[str] = []


class KeeperView(View):
    """The server's own process in the swarm."""

    state: KeeperState
    pid: int | None = None
    restarts: int = 0
    problem: str | None = None
    """Why it last ended by itself."""
    addresses: list[str] = []


class SwarmEvent(View):
    seq: int
    at: Utc
    kind: str
    message: str
    data: dict[str, Any] = {}


class SwarmSummary(View):
    """A row of `swarm list`."""

    id: str
    name: str
    status: SwarmState
    reason: str | None = None
    public: bool
    peers: int
    """Heard of within the last half minute."""
    round: int | None = None
    samples: int | None = None
    """Of the last round."""
    total_samples: int | None = None
    """Of all its present peers since they joined."""
    loss: float | None = None
    performance: float | None = None
    """Samples a second, of all peers."""
    created_at: Utc
    stopped_at: Utc | None = None


class SwarmView(SwarmSummary):
    """What `swarm inspect` shows."""

    workspace: str
    created_by: str
    spec: SwarmSpec
    source: dict[str, Any]
    run_id: str
    owner_key: str
    keeper: KeeperView
    checkpoint: str | None = None
    """Name of the newest."""
    checkpoints: int = 0
    invitations: int = 0
    """Those that still open."""
    events: list[SwarmEvent] = []


class InvitationCreate(Schema):
    name: str = "invitation"
    """For people to tell them apart."""
    expires_in_s: int = Field(default=7 * 86_400, ge=1, le=MAX_LIFE_S)
    max_peers: int | None = Field(default=None, ge=1, le=1_000_000)
    """How many may join by it, all told."""

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return check_name(value, "invitation name")


class InvitationView(View):
    id: str
    name: str
    created_by: str
    created_at: Utc
    expires_at: Utc
    revoked_at: Utc | None
    max_peers: int | None
    peers: int
    """That have joined by it."""
    is_open: bool


class InvitationCreated(InvitationView):
    token: str
    """Shown this once; the link is http(s)://SERVER/join/TOKEN."""


class SwarmCreated(View):
    swarm: SwarmView
    invitation: InvitationCreated


class Kick(Schema):
    reason: str = Field(default="", max_length=500)
    revoke: bool = False
    """Also revoke the invitation it came by."""


class Offer(View):
    """What an invitation opens, before one joins."""

    swarm: str
    status: SwarmState
    time: float
    """Of the server's clock, Unix seconds."""
    version: str
    """Of Shoal, there."""
    hivemind: str | None
    code: str
    """Manifest of the source."""
    size: int
    """Bytes of code and data."""
    state_size: int
    """Bytes of the newest checkpoint."""
    addresses: list[str]
    keeper: str
    """State of the server's own peer."""
    terms: SwarmTerms


class PeerKnock(Schema):
    port: int = Field(ge=1, le=65_535)


class PeerKnocked(View):
    reached: bool
    address: str
    """As the server sees the machine."""


class PeerJoin(Schema):
    name: str
    public_key: str
    version: str = Field(max_length=100)
    """Of Shoal, here."""
    code: str = Field(max_length=64)
    """The manifest it is about to run."""
    time: float
    client_mode: bool = False
    facts: dict[str, str] = Field(default={}, max_length=40)

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return check_name(value, "peer name")

    @field_validator("public_key")
    @classmethod
    def _key(cls, value: str) -> str:
        if not _PUBLIC_KEY.fullmatch(value):
            raise ValueError("a public key is 64 hex digits")
        return value

    @field_validator("facts")
    @classmethod
    def _facts(cls, value: dict[str, str]) -> dict[str, str]:
        if any(len(key) > 40 or len(text) > 200 for key, text in value.items()):
            raise ValueError("too much is told of the machine")
        return value


class PeerInput(View):
    name: str
    manifest_id: str


class PeerOrders(View):
    """What a peer's machine is to do next."""

    status: SwarmState
    run_id: str
    kicked: bool = False
    reason: str | None = None
    addresses: list[str] = []
    members: dict[str, str] = {}
    fingerprint: str | None = None
    has_snapshot: bool = False


class PeerJoined(View):
    peer: str
    token: str
    """Good for an hour after each beat."""
    terms: SwarmTerms
    entry: list[str]
    env: dict[str, str]
    code: str
    inputs: list[PeerInput]
    owner_key: str
    orders: PeerOrders


class PeerBeat(Schema):
    state: Literal["joining", "training"]


class SwarmStateFile(View):
    path: str
    size: int


class SwarmStateView(View):
    """The newest state the server has; each file is at `<this URL>/<id>/<path>`, and ranges of it can be asked for."""

    id: str
    round: int
    samples: int | None = None
    loss: float | None = None
    hash: str
    files: list[SwarmStateFile]
