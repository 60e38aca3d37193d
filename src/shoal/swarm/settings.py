"""Settings of a swarm peer, read from the ticket of `shoal swarm join` or given in the script."""

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
    """Settings of a swarm. They must be equal on all peers, except those marked *Per peer*.

    Example:
        >>> settings = shoal.swarm.Settings(run_id="reef", target_batch_size=256, local_steps=100)
    """

    run_id: str
    """Name of the run, without dots. It prefixes all keys of the swarm in the DHT."""
    target_batch_size: int
    """Samples in one global step, summed over all peers."""
    mode: Mode = "local-steps"
    """"local-steps": peers train alone and average their updates once per round; "large-batch": they average gradients."""
    local_steps: int = 50
    """Global steps per round, once rounds have reached their full length."""
    first_steps: int = 5
    """Global steps per round at the start, when peers differ most and must average often."""
    growth: float = 0.2
    """Length of a round as a share of all steps before it, kept between `first_steps` and `local_steps`."""
    compression: Compression = "int8"
    """Encoding of exchanged values: "int8" takes one byte per value, "fp16" two, "none" four."""
    outer_lr: float = 1.0
    """Learning rate of the outer step, which applies the averaged update to the shared model."""
    outer_momentum: float = 0.5
    """Nesterov momentum of the outer step. With the default rate it moves the model twice as far as the average update:
    faster than plain averaging in our measurements."""
    aggregation: Aggregation = "mean"
    """"mean": weighted average; "robust": an average that a minority of bad updates cannot steer."""
    clip: float | None = None
    """Longest part that is averaged, as a multiple of the median length; longer parts are scaled down. None: no limit."""
    delayed: bool = False
    """Large batches: average and step in the background while the next batch is gathered; gradients are then one step late.
    Leave it off where peers are often late: such rounds are averaged only in part."""
    offload: bool = False
    """*Per peer.* Large batches: keep the optimizer and its moments in CPU memory. Always on with `delayed`."""
    initial_peers: tuple[str, ...] = ()
    """*Per peer.* Addresses (multiaddr) of the peers to contact first."""
    client_mode: bool = False
    """*Per peer.* Make outbound connections only: other peers cannot call this one or download from it."""
    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    """*Per peer.* Addresses (multiaddr) to listen on."""
    announce: tuple[str, ...] | None = None
    """*Per peer.* Addresses other peers should use, if they differ from `listen`."""
    identity_path: str | None = None
    """*Per peer.* File of the p2p key; None: a new key at every start."""
    peer: str | None = None
    """*Per peer.* Id given by the server."""
    peer_name: str = ""
    """*Per peer.* Name shown to people."""
    trust: Trust = "trusted"
    """Admission of peers: see `shoal.core.swarm.Trust`."""
    signing_key: str | None = field(default=None, repr=False)
    """*Per peer.* Ed25519 private key in hex. It signs the records that this peer publishes."""
    members: Mapping[str, str] = field(default_factory=dict)
    """Peer id → public key of the members at the time this peer joined."""
    owner_key: str | None = None
    """Public key of the swarm's owner, in hex. Only records signed with it can command the swarm."""
    fingerprint: str | None = None
    """Hash of the model's parameter names and shapes; None: that of the first peer."""
    snapshot_url: str | None = None
    """URL of the newest state on the server, used when no peer can provide one."""
    token: str | None = field(default=None, repr=False)
    """*Per peer.* Bearer token for the server."""
    state_dir: str | None = None
    """*Per peer.* Folder of the last states; None: they are not stored."""
    seed: int = 0
    """Random seed of the sample order. Every peer derives its own order from it."""
    matchmaking_s: float = 5.0
    """Seconds that peers wait for each other at the end of a round. Raise it if the log says "continued alone"."""
    averaging_s: float = 60.0
    """Maximum seconds of one exchange."""
    refresh_s: float = 0.5
    """Minimum seconds between two reads of the other peers' progress."""
    expiry_s: float = 30.0
    """Seconds without a report after which a peer no longer counts."""

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
        """Build settings from a mapping of field names.

        Unknown names are ignored and None means the default. A single address may stand for a list of addresses.
        Raises UsageError if a required field is missing or a value is out of range.
        """
        known = {f.name for f in fields(cls)}
        given = {name: value for name, value in found.items() if name in known and value is not None}
        for name in ("initial_peers", "listen", "announce"):
            if name in given:
                given[name] = (given[name],) if isinstance(given[name], str) else tuple(given[name])
        try:
            return cls(**given)
        except TypeError as error:
            raise UsageError(
                f"the swarm's settings are incomplete: {error}", hint="join again: shoal swarm join LINK"
            ) from error


def gather_settings(given: Mapping[str, Any], env: Mapping[str, str] | None = None) -> Settings | None:
    """Return the settings of this process's ticket, overridden by `given`; None if there is neither."""
    path = (os.environ if env is None else env).get(VARIABLE)
    ticket = Ticket.read(path).model_dump() if path else {}
    return Settings.of({**ticket, **given}) if ticket or given else None


def round_samples(done: int, settings: Settings) -> int:
    """Return the samples of the round that starts after `done` samples; peers with equal `done` and settings agree on it."""
    steps = int(settings.growth * done / settings.target_batch_size)
    return settings.target_batch_size * max(
        min(settings.first_steps, settings.local_steps), min(settings.local_steps, steps)
    )


def data_seed(settings: Settings) -> int:
    """Return the random seed of this peer's sample order. It differs between peers, so they read different samples."""
    own = settings.peer or secrets.token_hex(8)
    return int.from_bytes(hashlib.blake2b(f"{settings.seed} {own}".encode(), digest_size=4).digest(), "big")
