"""Internals of swarms: the terms all peers share, the ticket a peer's script reads, and the coordinator's start file.

`shoal.core.swarm_views` has what people and joining machines see of a swarm.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from shoal.core.errors import InvalidSpec
from shoal.core.jobs import check_env
from shoal.core.names import check_name
from shoal.core.schema import Schema

VARIABLE = "SHOAL_SWARM"
"""Environment variable of a peer's script: the path of its ticket."""
LOST_SWARM = 75
"""Exit code of a script that has lost contact with all other peers. It is then restarted."""
MOST_SKEW_S = 30.0
"""Largest clock difference in seconds. Records in a swarm live for a minute or two: with a larger difference a peer's records
would be ignored or kept too long."""
SET_CLOCK = "Set it, then join again: sudo timedatectl set-ntp true"
Mode = Literal["local-steps", "large-batch"]
Compression = Literal["int8", "fp16", "none"]
Aggregation = Literal["mean", "robust"]
Trust = Literal["trusted", "invited", "open"]
"""Rule for who may take part: see SwarmTerms.trust."""
_TCP = re.compile(r"/(ip4|ip6|dns4|dns6|dns)/([^/]+)/tcp/(\d{1,5})(/.*)?")


class SwarmTerms(Schema):
    """Terms that all peers of a swarm must share."""

    mode: Mode = "local-steps"
    """local-steps: each peer makes many steps alone, then all exchange updates once. large-batch: the gradients of every batch
    are averaged."""
    target_batch_size: int = Field(ge=1, le=1 << 40)
    """Samples of the whole swarm in one (inner) batch."""
    local_steps: int = Field(default=50, ge=1, le=100_000)
    """Inner steps between two exchanges; ignored in the mode large-batch."""
    compression: Compression = "int8"
    outer_lr: float = Field(default=1.0, gt=0, le=10)
    outer_momentum: float = Field(default=0.5, ge=0, lt=1)
    aggregation: Aggregation = "mean"
    """mean: weighted mean of all updates. robust: outliers from one or two peers do not affect the model. The default is robust
    if `trust` is open."""
    clip: float | None = Field(default=None, gt=0)
    """Largest norm of a part of a peer's update, as a multiple of the median norm; longer parts are shortened to it. None: no
    limit. Ignored by robust aggregation."""
    trust: Trust = "invited"
    """invited: only members, who joined with an invitation, take part. open: the same, for invitations that strangers may get:
    no member is trusted, so updates are aggregated robustly unless `aggregation` is given. trusted: any peer that can connect
    takes part, as long as the swarm has no list of members. Banned peers are always excluded."""
    seed: int = Field(default=0, ge=0, lt=1 << 32)

    @model_validator(mode="before")
    @classmethod
    def _guard_open(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("trust") == "open":
            return {"aggregation": "robust", **given}
        return given


class SwarmSpec(SwarmTerms):
    """The complete description of a swarm."""

    name: str
    entry: list[str] = Field(min_length=1, max_length=10_000)
    """Script, relative to the root of the source, followed by its arguments, passed unchanged."""
    source_id: str
    datasets: list[str] = []
    """Dataset names, each provided at /input/<name> on every peer."""
    env: dict[str, str] = {}
    every_rounds: int = Field(default=10, ge=1, le=1_000_000)
    """Largest number of rounds between two checkpoints."""
    every_s: int = Field(default=600, ge=5, le=30 * 86_400)
    """Largest number of seconds between two checkpoints."""
    keep_last: int = Field(default=5, ge=1, le=10_000)
    """Number of newest checkpoints to keep, besides those that a person protected."""
    public: bool = False
    """Show the swarm's progress on the page behind an invitation."""
    port: int = Field(default=0, ge=0, le=65_535)
    """Port of the swarm coordinator; 0 picks a free port and keeps it."""

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return check_name(value, "swarm name")

    @field_validator("env")
    @classmethod
    def _env(cls, value: dict[str, str]) -> dict[str, str]:
        return check_env(value)

    def terms(self) -> SwarmTerms:
        """Return only the terms that all peers share."""
        return SwarmTerms.model_validate(self.model_dump(include=set(SwarmTerms.model_fields)))


class Ticket(SwarmTerms):
    """Everything one peer's script needs to join. It contains keys: only its owner may read the file."""

    swarm: str
    run_id: str
    """Id of the swarm since it was last resumed. Peers from before and after a resume do not meet."""
    peer: str
    peer_name: str
    initial_peers: list[str] = []
    """Addresses of peers that are up, as multiaddrs."""
    client_mode: bool = False
    """True if other peers cannot connect to this one; it connects to them."""
    listen: list[str] = ["/ip4/0.0.0.0/tcp/0"]
    announce: list[str] | None = None
    """Addresses to announce to other peers, if they differ from those it listens on."""
    state_dir: str
    server: str
    """URL of the server that invited it."""
    token: str
    """Token of this peer for the server. It expires some time after the last heartbeat."""
    signing_key: str
    """Private ed25519 key, hex. The other members know its public half."""
    members: dict[str, str] = {}
    """Peer → public key, at the time this peer joined."""
    owner_key: str
    """Public ed25519 key of the swarm's owner, hex. Lists of members are signed with it."""
    fingerprint: str | None = None
    """Fingerprint of the model's shape, once it is known."""
    snapshot_url: str | None = None
    """URL of the newest state on the server (`SwarmStateView`; send the token as a bearer token); None if there is none."""

    @classmethod
    def read(cls, path: str | Path) -> Ticket:
        """Read a ticket file; raise InvalidSpec if it is missing or invalid."""
        try:
            return cls.model_validate_json(Path(path).read_bytes())
        except (OSError, ValidationError) as error:
            raise InvalidSpec(
                f"{path} is not a ticket to a swarm: {type(error).__name__}.", hint="shoal swarm join LINK"
            ) from error


class CoordinatorSettings(Schema):
    """Start file of the swarm coordinator, the server's own peer in a swarm."""

    ticket: Ticket
    owner_signing_key: str
    identity_path: str
    listen: list[str]
    announce: list[str] | None = None
    folder: str
    """Folder to which it writes checkpoints."""
    every_rounds: int
    every_s: int
    keep: int = 3
    snapshot: str | None = None
    """Folder of the checkpoint from which the swarm continues."""
    banned: list[str] = []


def clock_problem(skew_s: float) -> str | None:
    """Return an error text if a machine's clock differs too much from the server's; positive `skew_s` means ahead."""
    if abs(skew_s) <= MOST_SKEW_S:
        return None
    side = "ahead of" if skew_s > 0 else "behind"
    return f"This machine's clock is {abs(skew_s):.0f} s {side} the server's; at most {MOST_SKEW_S:.0f} s are allowed."


def version_problem(swarm: str, here: str, there: str) -> str | None:
    """Return an error text if a machine's version of Shoal does not match that of the swarm."""
    if here.split(".")[:2] == there.split(".")[:2]:
        return None
    return f"This machine has Shoal {here}; swarm '{swarm}' runs on {there}."


def tcp_of(address: str) -> tuple[str, int] | None:
    """Return host and port of a multiaddr; None if it is not plain TCP."""
    match = _TCP.fullmatch(address)
    if match is None or int(match[3]) > 65_535:
        return None
    return match[2], int(match[3])


def moved(address: str, host: str) -> str | None:
    """Return a multiaddr with another host and the same port and peer; None if it is not plain TCP."""
    match = _TCP.fullmatch(address)
    if match is None:
        return None
    try:
        kind = "ip4" if ipaddress.ip_address(host).version == 4 else "ip6"
    except ValueError:
        kind = "dns"
    return f"/{kind}/{host}/tcp/{match[3]}{match[4] or ''}"
