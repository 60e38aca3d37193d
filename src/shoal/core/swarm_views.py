"""Swarms on the wire: what people see of them, and messages between the server and a joining machine."""

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
CoordinatorState = Literal["off", "starting", "ready", "restarting"]
_PUBLIC_KEY = re.compile(r"[0-9a-f]{64}")


class SwarmState(StrEnum):
    """State of a swarm."""

    RUNNING = "running"
    STOPPED = "stopped"


class PeerState(StrEnum):
    """State of a peer."""

    JOINING = "joining"
    """Fetching the code and data, or the swarm's state."""
    TRAINING = "training"
    LEFT = "left"
    LOST = "lost"
    """No heartbeat for a while; the peer may come back."""
    KICKED = "kicked"


class PeerMark(View):
    """Reports of one round that a peer's update was an outlier, by most of the peers that judged it."""

    round: int = Field(ge=0)
    by: list[str] = Field(default=[], max_length=1000)
    """Ids of the peers that reported it."""
    of: int = Field(default=0, ge=0)
    """Number of peers that judged it."""


class PeerView(View):
    """A peer of a swarm."""

    id: str
    name: str
    state: PeerState
    reason: str | None = None
    invitation: str
    """Id of the invitation it used."""
    joined_at: Utc
    seen_at: Utc
    left_at: Utc | None = None
    round: int | None = None
    samples: int = 0
    """Samples it claims to have trained on since it joined."""
    accepted: int = 0
    """Samples that count as its contribution: of rounds in which it averaged with others and was not reported by most of them."""
    share: float = 0.0
    """Its fraction of the accepted samples of all peers."""
    evidence: list[PeerMark] = []
    """Rounds in which most of the peers that judged its updates reported them."""
    samples_per_s: float | None = None
    loss: float | None = None
    """Mean loss in its last report."""
    mini_steps: int | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    client_mode: bool = False
    facts: dict[str, str] = {}
    """Versions, device and operating system, as reported by the machine."""


class RoundView(View):
    """One round of the swarm, as seen by the swarm coordinator."""

    round: int
    at: Utc
    loss: float | None = None
    samples: int | None = None
    alive: int | None = None
    performance: float | None = None
    """Samples per second of all peers together."""
    seconds: float | None = None
    averaged: float | None = None
    """Fraction of the values that were averaged successfully."""
    bytes: int | None = None
    members: list[str] = []


class CoordinatorView(View):
    """The swarm coordinator: the server's own process in the swarm."""

    state: CoordinatorState
    pid: int | None = None
    restarts: int = 0
    problem: str | None = None
    """Reason why it last ended unexpectedly."""
    addresses: list[str] = []


class SwarmEvent(View):
    """One entry of a swarm's history."""

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
    """Number of peers with a sign of life in the last half minute."""
    round: int | None = None
    samples: int | None = None
    """Samples of the last round."""
    total_samples: int | None = None
    """Samples of all present peers since they joined."""
    loss: float | None = None
    performance: float | None = None
    """Samples per second of all peers together."""
    created_at: Utc
    stopped_at: Utc | None = None


class SwarmView(SwarmSummary):
    """A swarm with all details, as shown by `swarm inspect`."""

    workspace: str
    created_by: str
    spec: SwarmSpec
    source: dict[str, Any]
    run_id: str
    owner_key: str
    keeper: CoordinatorView
    """State of the swarm coordinator."""
    checkpoint: str | None = None
    """Name of the newest checkpoint."""
    checkpoints: int = 0
    invitations: int = 0
    """Number of invitations that can still be used."""
    reported: list[PeerView] = []
    """Peers whose updates were reported by most others, present or removed, with the evidence."""
    events: list[SwarmEvent] = []


class InvitationCreate(Schema):
    """A new invitation to a swarm."""

    name: str = "invitation"
    """Name to tell invitations apart."""
    expires_in_s: int = Field(default=7 * 86_400, ge=1, le=MAX_LIFE_S)
    max_peers: int | None = Field(default=None, ge=1, le=1_000_000)
    """Largest number of peers that can join with it in total; None for no limit."""

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return check_name(value, "invitation name")


class InvitationView(View):
    """An invitation to a swarm."""

    id: str
    name: str
    created_by: str
    created_at: Utc
    expires_at: Utc
    revoked_at: Utc | None
    max_peers: int | None
    peers: int
    """Number of peers that have joined with it."""
    is_open: bool


class InvitationCreated(InvitationView):
    """A new invitation with its token."""

    token: str
    """Token of the invitation, shown only once. The link is http(s)://SERVER/join/TOKEN."""


class SwarmCreated(View):
    """A new swarm and its first invitation."""

    swarm: SwarmView
    invitation: InvitationCreated


class Kick(Schema):
    """A request to remove a peer."""

    reason: str = Field(default="", max_length=500)
    revoke: bool = False
    """Also revoke the invitation it used."""


class Offer(View):
    """Information about a swarm for the holder of an invitation, before joining."""

    swarm: str
    status: SwarmState
    time: float
    """Unix time of the server's clock in seconds."""
    version: str
    """Version of Shoal on the server."""
    hivemind: str | None
    code: str
    """Id of the manifest of the source."""
    size: int
    """Bytes of code and data."""
    state_size: int
    """Bytes of the newest checkpoint."""
    addresses: list[str]
    keeper: str
    """State of the swarm coordinator."""
    terms: SwarmTerms


class PeerKnock(Schema):
    """A request to test whether the server can connect to a port of the machine."""

    port: int = Field(ge=1, le=65_535)


class PeerKnocked(View):
    """Result of the connection test."""

    reached: bool
    address: str
    """Address of the machine as the server sees it."""


class PeerJoin(Schema):
    """A machine's request to join a swarm."""

    name: str
    public_key: str
    version: str = Field(max_length=100)
    """Version of Shoal on the machine."""
    code: str = Field(max_length=64)
    """Id of the manifest of the code it is about to run."""
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
            raise ValueError("the facts about the machine are too long")
        return value


class PeerInput(View):
    """A dataset to provide on the peer."""

    name: str
    manifest_id: str


class PeerInstructions(View):
    """Instructions for a peer's machine."""

    status: SwarmState
    run_id: str
    kicked: bool = False
    reason: str | None = None
    addresses: list[str] = []
    members: dict[str, str] = {}
    fingerprint: str | None = None
    has_snapshot: bool = False


class PeerJoined(View):
    """The answer to a machine that has joined."""

    peer: str
    token: str
    """Token of the peer. It is valid for one hour after each heartbeat."""
    terms: SwarmTerms
    entry: list[str]
    env: dict[str, str]
    code: str
    inputs: list[PeerInput]
    owner_key: str
    orders: PeerInstructions


class PeerBeat(Schema):
    """A peer's heartbeat."""

    state: Literal["joining", "training"]


class SwarmStateFile(View):
    path: str
    size: int


class SwarmStateView(View):
    """The newest state on the server. Each file is at `<this URL>/<id>/<path>`; range requests are supported."""

    id: str
    round: int
    samples: int | None = None
    loss: float | None = None
    hash: str
    files: list[SwarmStateFile]
