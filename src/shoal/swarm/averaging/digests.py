"""Digests of the parts of an update, which every peer announces before an exchange.

The peer that reduces a part checks it against the announced digest, and all members see the digests of all. So a peer that
sends the update of an earlier round again, its own or another's, is refused by everyone who was in that round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_REMEMBERED = 50
"""Rounds whose digests are remembered."""
_MOST = 1 << 16
"""Digests of one update that are remembered."""


def digest(part: Tensor) -> int:
    """Return the digest of a part's values; 0 if all of them are zero."""
    plain = part.detach().reshape(-1).float().cpu()
    if not plain.any():
        return 0
    return int.from_bytes(blake2b((plain + 0.0).numpy().data, digest_size=6).digest(), "big") or 1


def digests(update: Tensor, size: int) -> list[int]:
    """Return the digests of an update's parts of `size` values each."""
    flat: Any = update.detach().reshape(-1)
    return [digest(part) for part in flat.split(size)]


def announced_digests(sent: Any) -> Sequence[int]:
    """Return the digests in the data that a peer announced; none if they are missing or invalid."""
    found = sent.get("parts") if isinstance(sent, Mapping) else None
    if not isinstance(found, list) or len(found) > _MOST or not all(isinstance(number, int) for number in found):
        return []
    return found


@dataclass(frozen=True, slots=True)
class Announced:
    """Digests and repeated updates that the members of a group announced."""

    parts: Mapping[str, Sequence[int]]
    """p2p id → digests of the parts of its update."""
    repeated: frozenset[str]
    """p2p ids of the members whose update is mostly one of an earlier round."""

    def problem(self, sender: str, number: int, part: Tensor) -> str | None:
        """Return why a part of a member cannot be accepted; None if it can."""
        if sender in self.repeated:
            return "it is from an earlier round"
        known = self.parts.get(sender, ())
        return "it is not what the peer announced" if number >= len(known) or digest(part) != known[number] else None


class SeenUpdates:
    """Digests of the updates of the last rounds."""

    def __init__(self) -> None:
        self._rounds: dict[str, frozenset[int]] = {}

    def see(self, place: str, gathered: Mapping[str, Any]) -> Announced:
        """Return what was announced by the members of a group at `place`, and remember it.

        A second exchange at the same place may repeat the updates of the first, which has failed.
        """
        parts = {p2p: announced_digests(sent) for p2p, sent in gathered.items()}
        earlier = frozenset[int]().union(*(found for at, found in self._rounds.items() if at != place))
        known = {p2p: frozenset(number for number in found if number) for p2p, found in parts.items()}
        self._rounds[place] = self._rounds.pop(place, frozenset()).union(*known.values())
        while len(self._rounds) > _REMEMBERED:
            del self._rounds[next(iter(self._rounds))]
        return Announced(parts, frozenset(p for p, own in known.items() if 2 * len(own & earlier) > len(own)))
