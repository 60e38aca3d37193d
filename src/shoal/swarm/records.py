"""Signed records that peers and the owner publish, and the rules by which a reader accepts them. No network here.

A record is stored in the DHT under a subkey that contains its author's public key, so every node can refuse a forged one.
The expiry time is signed too: an old record that is stored again with a later expiry counts as forged.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import ConfigDict, Field, ValidationError

from shoal.core.schema import View
from shoal.core.swarm import Trust

Kind = Literal["progress", "order"]

OWNER = "owner"
LARGEST = {"progress": 16 << 10, "order": 1 << 20}
"""Maximum bytes of a record by kind; checked before anything else."""
CLOCKS_S = 60.0
"""Seconds that a peer's clock may be ahead of ours."""
LIVELY_S = 30.0
"""Seconds without a new record after which a peer may be dead. Peers publish every ten seconds."""
_SIGNATURE = 64

Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Rate = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Name = Annotated[str, Field(max_length=100)]


class _Record(View):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    time: float = Field(default_factory=time.time, allow_inf_nan=False)
    until: float = Field(default=0.0, allow_inf_nan=False)
    """Time when the DHT drops the record; set by `seal`."""


class Progress(_Record):
    """Record of one peer. `loss`, `mini_steps` and `samples` are sums over its last finished round."""

    kind: ClassVar[Kind] = "progress"
    peer: Name
    name: Name = ""
    p2p: Name
    """Id in the p2p network. Only ids that appear in a member's signed record may take part in averaging."""
    round: Count = 0
    rollbacks: Count = 0
    """Number of the last rollback the peer followed. Rounds after a rollback are newer than all rounds before it."""
    samples: Count = 0
    loss: float = Field(default=0.0, allow_inf_nan=True)
    mini_steps: Count = 0
    samples_per_s: Rate = 0.0
    total_samples: Count = 0
    """Samples since the peer joined."""
    bytes_in: Count = 0
    bytes_out: Count = 0
    averaged: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Share of the last round's values that was averaged, from 0 to 1."""
    round_s: Rate = 0.0
    members: list[Name] = Field(default=[], max_length=256)
    """p2p ids of the peers it averaged with."""
    odd: list[Name] = Field(default=[], max_length=256)
    """p2p ids of the peers whose parts were outliers or were refused in the last round."""
    judged: bool | None = None
    """True if it reduced a share of the last round and so saw parts of all members; None if it is too old to say."""
    state_hash: Name | None = None
    recent: dict[Name, Count] = Field(default={}, max_length=8)
    """Hash → epoch of its last states, with the current one. A download may deliver any of them."""
    serves_state: bool = False
    state: Literal["joining", "training", "leaving"] = "training"

    @property
    def author(self) -> str:
        return self.peer


class Rollback(View):
    """Command to return to an earlier round."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    number: Count
    """Number of the rollback. A peer follows each number once."""
    to_round: Count
    hash: Name | None = None


class OwnerCommands(_Record):
    """Commands of the swarm's owner, published by the coordinator. The record with the highest version is in force."""

    kind: ClassVar[Kind] = "order"
    author: ClassVar[str] = OWNER
    version: Count
    members: dict[Name, Name] = {}
    """Peer id → public key."""
    banned: list[Name] = []
    aggregation: Literal["mean", "robust"] | None = None
    """Aggregation that replaces the one in the tickets; None: no change."""
    rollback: Rollback | None = None
    stop: bool = False


_R = TypeVar("_R", Progress, OwnerCommands)


def new_signing_key() -> str:
    """Return a new Ed25519 private key in hex."""
    return Ed25519PrivateKey.generate().private_bytes_raw().hex()


def public_of(signing_key: str) -> str:
    """Return the public key of a private one, both in hex."""
    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(signing_key)).public_key().public_bytes_raw().hex()


def key_of(run_id: str, kind: Kind) -> str:
    """Return the DHT key under which all records of a kind are stored."""
    return f"{run_id}:{kind}"


def subkey_of(peer: str, public_key: str) -> str:
    """Return the DHT subkey of an author's record."""
    return f"{peer}.{public_key}"


def seal(record: Progress | OwnerCommands, run_id: str, signing_key: str, *, until: float) -> bytes:
    """Return the record as bytes: an Ed25519 signature followed by JSON."""
    payload = record.model_copy(update={"until": until}).model_dump(mode="json")
    if isinstance(record, Progress):
        payload["loss"] = repr(record.loss)  # JSON cannot express NaN or infinity
    body = json.dumps(payload, separators=(",", ":"), sort_keys=True).encode()
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(signing_key))
    return key.sign(_signed(record.kind, run_id, body)) + body


def unseal(kind: type[_R], subkey: Any, blob: Any, run_id: str) -> _R | None:
    """Return the record if the key in its subkey has signed it for this swarm; None if not."""
    peer, _, public_key = subkey.rpartition(".") if isinstance(subkey, str) else ("", "", "")
    name = kind.kind
    if not peer or not isinstance(blob, bytes) or not _SIGNATURE < len(blob) <= LARGEST[name]:
        return None
    signature, body = blob[:_SIGNATURE], blob[_SIGNATURE:]
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)).verify(signature, _signed(name, run_id, body))
        payload = json.loads(body)
        if kind is Progress:
            payload["loss"] = float(payload["loss"])
        record: _R = kind.model_validate(payload)
    except (InvalidSignature, ValidationError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return record if record.author == peer else None


class Reader:
    """Filter for records from the DHT: accepts the owner's commands and the members' newest, unexpired records."""

    def __init__(
        self,
        run_id: str,
        *,
        owner_key: str,
        trust: Trust = "invited",
        members: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ):
        self.run_id, self.owner_key = run_id, owner_key
        self._trust, self._at_first, self._clock = trust, dict(members or {}), clock
        self._seen: dict[str, tuple[float, float]] = {}
        """Peer → time of its newest record by the peer's clock, and its arrival time by ours."""
        self.commands: OwnerCommands | None = None
        """Newest record of the owner seen so far. It stays in force while the owner is offline."""

    @property
    def members(self) -> dict[str, str]:
        """Peer id → public key: the members of the ticket and of the owner's newest record."""
        return self._at_first | (self.commands.members if self.commands else {})

    def read_commands(self, raw: Mapping[Any, Any]) -> OwnerCommands | None:
        """Remember the owner's record if it is newer than the known one; return the newest."""
        commands = unseal(OwnerCommands, (subkey := subkey_of(OWNER, self.owner_key)), raw.get(subkey), self.run_id)
        if (
            commands
            and commands.time <= self._clock() + CLOCKS_S
            and (not self.commands or commands.version > self.commands.version)
        ):
            self.commands = commands
        return self.commands

    def read_progress(self, raw: Mapping[Any, Any]) -> dict[str, Progress]:
        """Return the valid records of members by peer id. Banned peers are not members."""
        found: dict[str, Progress] = {}
        for subkey, blob in raw.items():
            if not isinstance(subkey, str) or not self._is_member(*subkey.rpartition(".")[::2]):
                continue
            record = unseal(Progress, subkey, blob, self.run_id)
            if record and self._is_in_time(record):
                found[record.peer] = record
        return found

    def admitted(self, progress: Mapping[str, Progress]) -> set[str] | None:
        """Return the p2p ids that may average with us; None if all peers may."""
        if self._admits_all:
            return None
        return {record.p2p for record in progress.values()}

    def lively(self, progress: Mapping[str, Progress]) -> dict[str, Progress]:
        """Return the records without those of silent peers, which may be dead though their records have not expired yet."""
        since = self._clock() - LIVELY_S
        return {peer: record for peer, record in progress.items() if self._seen[peer][1] >= since}

    @property
    def _admits_all(self) -> bool:
        return self._trust == "trusted" and not self.members

    def _is_member(self, peer: str, public_key: str) -> bool:
        if self.commands and peer in self.commands.banned:
            return False
        return self._admits_all or self.members.get(peer) == public_key

    def _is_in_time(self, record: Progress) -> bool:
        now = self._clock()
        if record.until <= now or record.time > now + CLOCKS_S:
            return False
        known = self._seen.get(record.peer)
        if known is None:
            self._seen[record.peer] = (record.time, min(now, record.time))
        elif record.time > known[0]:
            self._seen[record.peer] = (record.time, now)
        return known is None or record.time >= known[0]


def _signed(kind: Kind, run_id: str, body: bytes) -> bytes:
    return b"\0".join((b"shoal swarm", kind.encode(), run_id.encode(), body))
