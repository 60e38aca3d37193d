"""Statistics of a swarm from the records of its peers. Pure: records in, events out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.swarm.agreement import Place
from shoal.swarm.averaging.robust import middle
from shoal.swarm.records import Progress

SETTLE_S = 3.0
"""Seconds that a round waits for the reports of late peers."""


def totals(records: Iterable[Progress]) -> dict[str, float]:
    """Return the totals over all peers, under the names that hivemind's monitors use.

    The loss is Σloss/Σmini_steps; it is missing while no peer has made a step.
    """
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
    """Return the median of the peers' mean losses, which one peer cannot move. A loss that is not finite counts as infinite."""
    means = [record.loss / record.mini_steps for record in records if record.mini_steps]
    return middle([mean if math.isfinite(mean) else math.inf for mean in means]) if means else None


@dataclass(frozen=True)
class FinishedRound:
    """A finished round: all training peers have reported it, or their time is over."""

    place: Place
    records: tuple[Progress, ...]
    """Records of the peers that finished it."""
    event: dict[str, Any]


class Monitor:
    """Builder of the coordinator's progress and round events."""

    def __init__(self) -> None:
        self._settled: Place | None = None
        self._awaited: tuple[Place, float, tuple[Progress, ...]] | None = None
        """Round that still waits for reports, the time since when, and the records so far."""
        self._bytes: dict[str, int] = {}
        self._metrics: dict[str, float] = {}
        self._metrics_place: Place | None = None

    def progress(self, records: Mapping[str, Progress]) -> dict[str, Any]:
        """Return a progress event. Its loss is the median of the peers' losses, which no single peer can move. Loss and samples change when a new round begins; peers and their speed change at once."""
        there = [record for record in records.values() if record.state != "leaving"]
        place, present = newest(there), totals(there)
        if (usual := typical_loss(there)) is not None:
            present["loss"] = usual
        if place != self._metrics_place or "loss" not in self._metrics:
            self._metrics_place, self._metrics = place, present
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

    def finished_rounds(self, records: Mapping[str, Progress], now: float) -> list[FinishedRound]:
        """Return the rounds that have just finished; each is returned once.

        A round is finished when all training peers have reported it, after SETTLE_S, or when the next round begins.
        """
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

    def _close(self) -> FinishedRound:
        assert self._awaited is not None  # noqa: S101
        (place, _, there), self._awaited = self._awaited, None
        self._settled = place
        return FinishedRound(place, there, self._round(place, there))

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
    """Return the newest place among the records, or None."""
    return max((Place.of(record) for record in records), key=lambda place: place.epoch, default=None)


def finite(value: float | None) -> float | None:
    """Return the value if it is finite, else None."""
    return value if value is not None and math.isfinite(value) else None


def _row(record: Progress) -> dict[str, Any]:
    """Return a peer's row in the table of contributions."""
    shown = record.model_dump(
        include={"peer", "name", "samples_per_s", "mini_steps", "bytes_in", "bytes_out", "round", "state"}
    )
    loss = record.loss / record.mini_steps if record.mini_steps else None
    return {**shown, "samples": record.total_samples, "loss": finite(loss), "averaged": record.averaged}
