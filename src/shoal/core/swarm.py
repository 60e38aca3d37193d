"""Swarms, seen from the inside: the terms all peers keep to, the ticket a peer's script reads, what the keeper is told.

What people and joining machines see of a swarm is in `shoal.core.swarm_views`.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator

from shoal.core.errors import InvalidSpec
from shoal.core.jobs import check_env
from shoal.core.names import check_name
from shoal.core.schema import Schema

VARIABLE = "SHOAL_SWARM"
"""In the environment of a peer's script: where its ticket is."""
LOST_SWARM = 75
"""What a script exits with that has lost all other peers and the way to new ones: it is started again."""
MOST_SKEW_S = 30.0
"""Records in a swarm live for a minute or two: a clock further off makes a peer's records unread, or believed too long."""
SET_CLOCK = "Set it, then join again: sudo timedatectl set-ntp true"
Mode = Literal["local-steps", "large-batch"]
Compression = Literal["int8", "fp16", "none"]
Aggregation = Literal["mean", "robust"]
Trust = Literal["trusted", "invited", "open"]
_TCP = re.compile(r"/(ip4|ip6|dns4|dns6|dns)/([^/]+)/tcp/(\d{1,5})(/.*)?")


class SwarmTerms(Schema):
    """What every peer of a swarm must do alike."""

    mode: Mode = "local-steps"
    """local-steps: many steps alone, then one exchange; large-batch: gradients of every batch are averaged."""
    target_batch_size: int = Field(ge=1, le=1 << 40)
    """Samples of the whole swarm in one (inner) batch."""
    local_steps: int = Field(default=50, ge=1, le=100_000)
    """Inner steps between two exchanges; of no meaning with large batches."""
    compression: Compression = "int8"
    outer_lr: float = Field(default=1.0, gt=0, le=10)
    outer_momentum: float = Field(default=0.5, ge=0, lt=1)
    aggregation: Aggregation = "mean"
    """robust: what one or two peers send out of line does not reach the model."""
    clip: float | None = Field(default=None, gt=0)
    """Largest norm of a peer's update, in norms of the usual one; None leaves it to the guards."""
    trust: Trust = "invited"
    """trusted: whoever comes; invited: those with an invitation, whose records are signed; open: invited, and guarded most."""
    seed: int = Field(default=0, ge=0, lt=1 << 32)


class SwarmSpec(SwarmTerms):
    """Everything needed to make a swarm."""

    name: str
    entry: list[str] = Field(min_length=1, max_length=10_000)
    """The script, relative to the source root, and its arguments, verbatim."""
    source_id: str
    datasets: list[str] = []
    """Dataset names, each at /input/<name> of every peer."""
    env: dict[str, str] = {}
    every_rounds: int = Field(default=10, ge=1, le=1_000_000)
    """Rounds between two checkpoints, at most."""
    every_s: int = Field(default=600, ge=5, le=30 * 86_400)
    """Seconds between two checkpoints, at most."""
    keep_last: int = Field(default=5, ge=1, le=10_000)
    """Checkpoints that stay, besides those kept by hand."""
    public: bool = False
    """Whether the page behind an invitation shows how far the swarm is."""
    port: int = Field(default=0, ge=0, le=65_535)
    """Where the server's own peer listens; 0 picks a free one and keeps to it."""

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return check_name(value, "swarm name")

    @field_validator("env")
    @classmethod
    def _env(cls, value: dict[str, str]) -> dict[str, str]:
        return check_env(value)

    def terms(self) -> SwarmTerms:
        return SwarmTerms.model_validate(self.model_dump(include=set(SwarmTerms.model_fields)))


class Ticket(SwarmTerms):
    """What one peer's script has to know. Holds keys: only its owner may read the file."""

    swarm: str
    run_id: str
    """Of the swarm since it was last resumed: peers of before do not meet those of after."""
    peer: str
    peer_name: str
    initial_peers: list[str] = []
    """Addresses of peers that are up, as multiaddr."""
    client_mode: bool = False
    """Nobody can connect to it; it connects to others."""
    listen: list[str] = ["/ip4/0.0.0.0/tcp/0"]
    announce: list[str] | None = None
    """Addresses to tell others, where they are not those it listens on."""
    state_dir: str
    server: str
    """URL of the server that invited it."""
    token: str
    """Of this peer, for the server; expires soon after its last beat."""
    signing_key: str
    """ed25519, private, hex; its public half is known to the other members."""
    members: dict[str, str] = {}
    """Peer → public key, when it joined."""
    owner_key: str
    """ed25519, public, hex: who may say who is a member."""
    fingerprint: str | None = None
    """Of the model's shape, once it is known."""
    snapshot_url: str | None = None
    """Where the server has the newest state (`SwarmStateView`; send the token as a bearer), if it has one."""

    @classmethod
    def read(cls, path: str | Path) -> Ticket:
        try:
            return cls.model_validate_json(Path(path).read_bytes())
        except (OSError, ValidationError) as error:
            raise InvalidSpec(
                f"{path} is not a ticket to a swarm: {type(error).__name__}.", hint="shoal swarm join LINK"
            ) from error


class KeeperOrder(Schema):
    """The file that the server's own peer of a swarm starts with."""

    ticket: Ticket
    owner_signing_key: str
    identity_path: str
    listen: list[str]
    announce: list[str] | None = None
    folder: str
    """Where it leaves checkpoints."""
    every_rounds: int
    every_s: int
    keep: int = 3
    snapshot: str | None = None
    """Folder of the checkpoint the swarm goes on from."""
    banned: list[str] = []


def clock_problem(skew_s: float) -> str | None:
    """What is wrong with a machine's clock that is so far ahead of the server's."""
    if abs(skew_s) <= MOST_SKEW_S:
        return None
    side = "ahead of" if skew_s > 0 else "behind"
    return f"This machine's clock is {abs(skew_s):.0f} s {side} the server's; at most {MOST_SKEW_S:.0f} s are allowed."


def version_problem(swarm: str, here: str, there: str) -> str | None:
    """What is wrong with a machine's version of Shoal."""
    if here.split(".")[:2] == there.split(".")[:2]:
        return None
    return f"This machine has Shoal {here}; swarm '{swarm}' runs on {there}."


def tcp_of(address: str) -> tuple[str, int] | None:
    """Host and port of a multiaddr; None where it is not plain TCP."""
    match = _TCP.fullmatch(address)
    if match is None or int(match[3]) > 65_535:
        return None
    return match[2], int(match[3])


def moved(address: str, host: str) -> str | None:
    """The same port and peer at another host; None where it is not plain TCP."""
    match = _TCP.fullmatch(address)
    if match is None:
        return None
    try:
        kind = "ip4" if ipaddress.ip_address(host).version == 4 else "ip6"
    except ValueError:
        kind = "dns"
    return f"/{kind}/{host}/tcp/{match[3]}{match[4] or ''}"
