"""What peers and the owner tell the swarm, signed, and how much of it a reader believes. Pure: no network in here.

A record lives in the DHT below a subkey that names its author's public key, so that any node can refuse a forged one.
Its end is signed with it: an old record put back with a longer life is forged too.
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
"""Bytes of a record; looked at before anything else is."""
CLOCKS_S = 60.0
"""How far a peer's clock may be ahead of ours."""
LIVELY_S = 30.0
"""Peers tell something every ten seconds; after so long without, they are not counted on."""
_SIGNATURE = 64

Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Rate = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Name = Annotated[str, Field(max_length=100)]


class _Record(View):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    time: float = Field(default_factory=time.time, allow_inf_nan=False)
    until: float = Field(default=0.0, allow_inf_nan=False)
    """When the DHT forgets it; set by `seal`."""


class Progress(_Record):
    """A peer's own. `loss`, `mini_steps` and `samples` are sums over its last finished round, and stay until the next one is."""

    kind: ClassVar[Kind] = "progress"
    peer: Name
    name: Name = ""
    p2p: Name
    """Its id in the p2p network: only those whose members signed for them may average."""
    round: Count = 0
    rollbacks: Count = 0
    """Number of the last rollback it followed: rounds after it are newer than any before."""
    samples: Count = 0
    loss: float = Field(default=0.0, allow_inf_nan=True)
    mini_steps: Count = 0
    samples_per_s: Rate = 0.0
    total_samples: Count = 0
    """Since it joined."""
    bytes_in: Count = 0
    bytes_out: Count = 0
    averaged: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """How much of the last round's tensors really was averaged."""
    round_s: Rate = 0.0
    members: list[Name] = Field(default=[], max_length=256)
    """p2p ids of those it averaged with."""
    odd: list[Name] = Field(default=[], max_length=256)
    """p2p ids of those whose parts stood out or were refused in the last round."""
    state_hash: Name | None = None
    recent: dict[Name, Count] = Field(default={}, max_length=8)
    """Hash → epoch of the states it held last, the present one included: others may download one while it goes on."""
    serves_state: bool = False
    state: Literal["joining", "training", "leaving"] = "training"

    @property
    def author(self) -> str:
        return self.peer


class Rollback(View):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    number: Count
    """Of the rollback: a peer follows each once."""
    to_round: Count
    hash: Name | None = None


class Order(_Record):
    """The owner's, written by the keeper. The one with the highest version holds."""

    kind: ClassVar[Kind] = "order"
    author: ClassVar[str] = OWNER
    version: Count
    members: dict[Name, Name] = {}
    """Peer id → public key."""
    banned: list[Name] = []
    aggregation: Literal["mean", "robust"] | None = None
    """Instead of what the tickets say."""
    rollback: Rollback | None = None
    stop: bool = False


_R = TypeVar("_R", Progress, Order)


def new_signing_key() -> str:
    return Ed25519PrivateKey.generate().private_bytes_raw().hex()


def public_of(signing_key: str) -> str:
    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(signing_key)).public_key().public_bytes_raw().hex()


def key_of(run_id: str, kind: Kind) -> str:
    """Of the DHT."""
    return f"{run_id}:{kind}"


def subkey_of(peer: str, public_key: str) -> str:
    return f"{peer}.{public_key}"


def seal(record: Progress | Order, run_id: str, signing_key: str, *, until: float) -> bytes:
    payload = record.model_copy(update={"until": until}).model_dump(mode="json")
    if isinstance(record, Progress):
        payload["loss"] = repr(record.loss)  # JSON has no word for a loss that is not a number
    body = json.dumps(payload, separators=(",", ":"), sort_keys=True).encode()
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(signing_key))
    return key.sign(_signed(record.kind, run_id, body)) + body


def unseal(kind: type[_R], subkey: Any, blob: Any, run_id: str) -> _R | None:
    """The record, if the key its subkey names has signed it for this swarm."""
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
    """What one believes who holds the owner's public key: members' newest records that are not out of time."""

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
        """Peer → time of its newest record, by its clock, and when that came here, by ours."""
        self.order: Order | None = None
        """The newest there was: the owner's word holds while the owner is away."""

    @property
    def members(self) -> dict[str, str]:
        return self._at_first | (self.order.members if self.order else {})

    def take_order(self, raw: Mapping[Any, Any]) -> Order | None:
        order = unseal(Order, (subkey := subkey_of(OWNER, self.owner_key)), raw.get(subkey), self.run_id)
        if order and order.time <= self._clock() + CLOCKS_S and (not self.order or order.version > self.order.version):
            self.order = order
        return self.order

    def take_progress(self, raw: Mapping[Any, Any]) -> dict[str, Progress]:
        """By peer id. Banned peers are no members."""
        found: dict[str, Progress] = {}
        for subkey, blob in raw.items():
            if not isinstance(subkey, str) or not self._is_member(*subkey.rpartition(".")[::2]):
                continue
            record = unseal(Progress, subkey, blob, self.run_id)
            if record and self._is_in_time(record):
                found[record.peer] = record
        return found

    def admitted(self, progress: Mapping[str, Progress]) -> set[str] | None:
        """p2p ids that may average with us; None where everybody may."""
        if self._admits_all:
            return None
        return {record.p2p for record in progress.values()}

    def lively(self, progress: Mapping[str, Progress]) -> dict[str, Progress]:
        """Without those not heard of for a while: they may be dead, and their records only last longer."""
        since = self._clock() - LIVELY_S
        return {peer: record for peer, record in progress.items() if self._seen[peer][1] >= since}

    @property
    def _admits_all(self) -> bool:
        return self._trust == "trusted" and not self.members

    def _is_member(self, peer: str, public_key: str) -> bool:
        if self.order and peer in self.order.banned:
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
