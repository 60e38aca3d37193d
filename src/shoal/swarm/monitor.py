"""A swarm in numbers, out of what its peers signed. Pure: records in, events out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.swarm.agreement import Place
from shoal.swarm.records import Progress
from shoal.swarm.robust import middle

SETTLE_S = 3.0
"""How long a round waits for the peers that have not told of it yet."""


def totals(records: Iterable[Progress]) -> dict[str, float]:
    """As collaborative training has always counted: loss is Σloss/Σmini_steps, and missing while nobody made a step."""
    known = list(records)
    steps = sum(record.mini_steps for record in known)
    loss = {"loss": sum(record.loss for record in known) / steps} if steps else {}
    return {
        **loss,
        "alive peers": len(known),
        "samples": sum(record.samples for record in known),
        "performance": sum(record.samples_per_s for record in known),
    }


def typical_loss(records: Iterable[Progress]) -> float | None:
    """What one peer claims cannot move it: the median over the peers. A loss that is not a number is the worst there is."""
    means = [record.loss / record.mini_steps for record in records if record.mini_steps]
    return middle([mean if math.isfinite(mean) else math.inf for mean in means]) if means else None


@dataclass(frozen=True)
class Settled:
    """A round that all who were to have told of."""

    place: Place
    records: tuple[Progress, ...]
    """Of those who finished it."""
    event: dict[str, Any]


class Monitor:
    def __init__(self) -> None:
        self._settled: Place | None = None
        self._awaited: tuple[Place, float, tuple[Progress, ...]] | None = None
        """The round that waits for its peers: since when, and the records of those who are there."""
        self._bytes: dict[str, int] = {}
        self._metrics: dict[str, float] = {}
        self._told: Place | None = None

    def progress(self, records: Mapping[str, Progress]) -> dict[str, Any]:
        """Sums change when the newest round does, as the peers' own do; who is there and how fast, at once."""
        there = [record for record in records.values() if record.state != "leaving"]
        place, present = newest(there), totals(there)
        if place != self._told or "loss" not in self._metrics:
            self._told, self._metrics = place, present
        return {
            "event": "progress",
            "round": place.round if place else 0,
            "rollbacks": place.rollbacks if place else 0,
            "samples": int(self._metrics["samples"]),
            "total_samples": sum(record.total_samples for record in records.values()),
            "loss": finite(self._metrics.get("loss")),
            "alive": len(there),
            "performance": present["performance"],
            "peers": [_row(records[peer]) for peer in sorted(records)],
        }

    def settle(self, records: Mapping[str, Progress], now: float) -> list[Settled]:
        """Each round once: when everybody in training has finished it, when the others have had their time, or with the next."""
        place = newest(record for record in records.values() if record.mini_steps)
        if place is None or (self._settled is not None and place.epoch <= self._settled.epoch):
            return []
        found = []
        awaited, since = (self._awaited[0], self._awaited[1]) if self._awaited else (place, now)
        if awaited != place:
            found, since = [self._close()], now
        there = [record for record in records.values() if Place.of(record) == place and record.mini_steps]
        self._awaited = (place, since, tuple(there))
        missing = [r for r in records.values() if r.state == "training" and Place.of(r).epoch < place.epoch]
        if not missing or now - since >= SETTLE_S:
            found.append(self._close())
        return found

    def _close(self) -> Settled:
        assert self._awaited is not None  # noqa: S101
        (place, _, there), self._awaited = self._awaited, None
        self._settled = place
        return Settled(place, there, self._round(place, there))

    def _round(self, place: Place, records: tuple[Progress, ...]) -> dict[str, Any]:
        sent = 0
        for record in records:
            sent += max(0, record.bytes_out - self._bytes.get(record.peer, 0))
            self._bytes[record.peer] = record.bytes_out
        weight = sum(record.samples for record in records)
        averaged = sum(record.averaged * record.samples for record in records) / weight if weight else 0.0
        return {
            "event": "round",
            "round": place.round,
            "rollbacks": place.rollbacks,
            "seconds": max((record.round_s for record in records), default=0.0),
            "members": sorted(record.peer for record in records),
            "averaged": averaged,
            "bytes": sent,
            "loss": finite(typical_loss(records)),
        }


def newest(records: Iterable[Progress]) -> Place | None:
    return max((Place.of(record) for record in records), key=lambda place: place.epoch, default=None)


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _row(record: Progress) -> dict[str, Any]:
    """A peer's line in the table of contributions."""
    shown = record.model_dump(
        include={"peer", "name", "samples_per_s", "mini_steps", "bytes_in", "bytes_out", "round", "state"}
    )
    loss = record.loss / record.mini_steps if record.mini_steps else None
    return {**shown, "samples": record.total_samples, "loss": finite(loss), "averaged": record.averaged}
