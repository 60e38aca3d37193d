"""Clock of a run: the time at which it was at a step, and its step at a time, read from the points of its longest metric.

Only the blocks that hold the answer are unpacked: blocks of one attempt are stored in the order of their times.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from shoal.server.models.metrics import MetricBlock, MetricSeries

if TYPE_CHECKING:
    from shoal.server.metrics.columns import Block


class StepClock:
    """Clock of one run. Reads nothing before it is asked."""

    def __init__(self, session: Session, job_id: str):
        self._session, self._job_id = session, job_id
        self._read: dict[int, Block] = {}
        self._found: dict[int, list[Any]] | None = None

    def time_of(self, step: int) -> float | None:
        """Return the time of the last point at or before a step, of the newest attempt that began at or before it."""
        attempts = self._attempts()
        for number in sorted(attempts, reverse=True):
            before = [row for row in attempts[number] if row.step_min <= step]
            if not before:
                continue
            block = self._block(max(before, key=lambda row: (row.step_min, row.first)).id)
            place = int((block.steps <= step).nonzero()[0][-1])
            return float(block.times[place])
        return None

    def step_at(self, moment: float, attempt: int | None = None) -> int | None:
        """Return the last step at or before a moment; of one attempt, if that has points."""
        attempts = self._attempts()
        chosen = [attempt] if attempt in attempts else list(attempts)
        found = [last for number in chosen if (last := self._last(attempts[number], moment))]
        return max(found)[1] if found else None

    def _last(self, rows: list[Any], moment: float) -> tuple[float, int] | None:
        place = bisect_right(rows, moment, key=lambda row: float(self._block(row.id).times[0]))
        if not place:
            return None
        block = self._block(rows[place - 1].id)
        at = bisect_right(block.times.tolist(), moment) - 1
        return float(block.times[at]), int(block.steps[at])

    def _block(self, block_id: int) -> Block:
        from shoal.server.metrics.columns import Block

        if block_id not in self._read:
            body = self._session.scalars(select(MetricBlock.body).where(MetricBlock.id == block_id)).one()
            self._read[block_id] = Block(body)
        return self._read[block_id]

    def _attempts(self) -> dict[int, list[Any]]:
        """Return attempt → its blocks of the longest metric, oldest first."""
        if self._found is None:
            self._found = self._load()
        return self._found

    def _load(self) -> dict[int, list[Any]]:
        of_run = (MetricSeries.job_id == self._job_id, MetricSeries.id == MetricBlock.series_id)
        total = func.sum(MetricBlock.count)
        longest = (
            select(MetricSeries.kind, MetricSeries.name)
            .where(*of_run)
            .group_by(MetricSeries.kind, MetricSeries.name)
            .order_by((MetricSeries.kind == "step").desc(), total.desc())
            .limit(1)
        )
        name = self._session.execute(longest).one_or_none()
        found: dict[int, list[Any]] = defaultdict(list)
        if name is None:
            return found
        rows = self._session.execute(
            select(MetricBlock.id, MetricSeries.attempt, MetricBlock.first, MetricBlock.step_min)
            .where(*of_run, MetricSeries.kind == name.kind, MetricSeries.name == name.name)
            .order_by(MetricSeries.attempt, MetricBlock.first, MetricBlock.id)
        )
        for row in rows:
            found[row.attempt].append(row)
        return dict(found)
