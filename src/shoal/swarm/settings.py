"""What a peer needs to know to take part in a swarm: from the ticket of `shoal swarm join`, or given in the script."""

from __future__ import annotations

import hashlib
import math
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_args

from shoal.core.errors import UsageError
from shoal.core.swarm import VARIABLE, Aggregation, Compression, Mode, Ticket, Trust

_WORDS = {"mode": Mode, "compression": Compression, "aggregation": Aggregation, "trust": Trust}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The same on all peers of a swarm, but for those marked *own*."""

    run_id: str
    """Prefix of everything the swarm keeps in its DHT."""
    target_batch_size: int
    """Samples of one global step, over all peers together."""
    mode: Mode = "local-steps"
    """"local-steps": peers step alone and average what they have learnt once a round; "large-batch": gradients are averaged."""
    local_steps: int = 50
    """Global steps in a round, once rounds have their full length."""
    first_steps: int = 5
    """Global steps in the first rounds: peers that start apart from each other meet often."""
    growth: float = 0.2
    """A round is this share of all steps made before it, between `first_steps` and `local_steps`."""
    compression: Compression = "int8"
    """Of what is exchanged: one byte a value, two, or four."""
    outer_lr: float = 1.0
    outer_momentum: float = 0.5
    """Together they move the model twice as far as peers did on the average: faster than plain averaging where it was measured."""
    aggregation: Aggregation = "mean"
    clip: float | None = None
    """Parts longer than so many median lengths are cut to that where they are averaged; None: as they are."""
    delayed: bool = False
    """Large batches: average and step in the background, while the next batch is gathered: its gradients are one step late.
    Rounds in which somebody is late are averaged in part; then leave it off."""
    offload: bool = False
    """*Own.* Large batches: the optimizer and its moments are in the CPU's memory. With `delayed` always."""
    initial_peers: tuple[str, ...] = ()
    """*Own.* Addresses (multiaddr) of peers to ask first."""
    client_mode: bool = False
    """*Own.* Only outbound connections: others neither call this peer nor download from it."""
    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    """*Own.*"""
    announce: tuple[str, ...] | None = None
    """*Own.* Addresses others shall use, where they differ from those it listens on."""
    identity_path: str | None = None
    """*Own.* File of the p2p key; None: a new one for every start."""
    peer: str | None = None
    """*Own.* Id given by the server."""
    peer_name: str = ""
    """*Own.*"""
    trust: Trust = "trusted"
    signing_key: str | None = field(default=None, repr=False)
    """*Own.* Ed25519 private key in hex, for records others shall believe."""
    members: Mapping[str, str] = field(default_factory=dict)
    """Public keys by peer id, when this peer joined."""
    owner_key: str | None = None
    fingerprint: str | None = None
    """Of the model's names and shapes; None: whatever the first peer has."""
    snapshot_url: str | None = None
    """Where the server has the newest state, for when no peer can give it."""
    token: str | None = field(default=None, repr=False)
    """*Own.* For the server."""
    state_dir: str | None = None
    """*Own.* Where the last states are kept; None: nowhere."""
    seed: int = 0
    """Of data order; every peer reads in an order of its own made from it."""
    matchmaking_s: float = 5.0
    """How long peers wait for each other at the end of a round. Raise it where rounds end with "went on alone"."""
    averaging_s: float = 60.0
    """Longest exchange of one round."""
    refresh_s: float = 0.5
    """Shortest time between two looks at how far the others are."""
    expiry_s: float = 30.0
    """A peer not heard of for so long does not count any more."""

    def __post_init__(self) -> None:
        for name, words in _WORDS.items():
            value, known = getattr(self, name), get_args(words)
            if value not in known:
                raise UsageError(f"{name}={value!r} of the swarm is not one of {', '.join(known)}")
        for name in ("target_batch_size", "local_steps", "first_steps"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"{name}={value!r} of the swarm must be a whole number of at least 1")
        for name, least in (("outer_lr", 0.0), ("matchmaking_s", 0.1), ("averaging_s", 1.0), ("refresh_s", 0.01)):
            value = getattr(self, name)
            if not math.isfinite(value) or value < least:
                raise UsageError(f"{name}={value!r} of the swarm must be a number of at least {least}")
        if not 0.0 <= self.outer_momentum < 1.0:
            raise UsageError(f"outer_momentum={self.outer_momentum!r} of the swarm must be at least 0 and below 1")
        if not self.run_id or "." in self.run_id:
            raise UsageError(f"run_id={self.run_id!r} of the swarm must be a name without dots")

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Settings:
        """From a mapping with these names; nulls are defaults, lists of addresses may be single ones."""
        known = {f.name for f in fields(cls)}
        given = {name: value for name, value in found.items() if name in known and value is not None}
        for name in ("initial_peers", "listen", "announce"):
            if name in given:
                given[name] = (given[name],) if isinstance(given[name], str) else tuple(given[name])
        try:
            return cls(**given)
        except TypeError as error:
            raise UsageError(
                f"the swarm's settings lack something: {error}", hint="join again: shoal swarm join LINK"
            ) from error


def gather_settings(given: Mapping[str, Any], env: Mapping[str, str] | None = None) -> Settings | None:
    """Of the swarm this process was started for, with what the script gives on top; None where there is neither."""
    path = (os.environ if env is None else env).get(VARIABLE)
    told = Ticket.read(path).model_dump() if path else {}
    return Settings.of({**told, **given}) if told or given else None


def round_samples(done: int, settings: Settings) -> int:
    """Samples of the round that begins after `done`. Peers that agree on `done` agree on this."""
    steps = int(settings.growth * done / settings.target_batch_size)
    return settings.target_batch_size * max(
        min(settings.first_steps, settings.local_steps), min(settings.local_steps, steps)
    )


def data_seed(settings: Settings) -> int:
    """Of this peer's own order of the data: no two peers read the same at the same time."""
    own = settings.peer or secrets.token_hex(8)
    return int.from_bytes(hashlib.blake2b(f"{settings.seed} {own}".encode(), digest_size=4).digest(), "big")
