"""Metrics on their way out: one history over all attempts, thinned to what a chart can show."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import select
from sqlalchemy.orm import Session, defer

from shoal.core.errors import InvalidSpec, NotFound
from shoal.core.metrics import Axis, MetricName, Record
from shoal.core.names import did_you_mean
from shoal.server.context import Context
from shoal.server.db import in_parts
from shoal.server.models.jobs import Job
from shoal.server.models.metrics import MetricBlock, MetricSeries
from shoal.server.policy import Access
from shoal.server.services import find
from shoal.server.services.metrics import read_others

if TYPE_CHECKING:
    from shoal.server.metrics.columns import Points

MOST_LAST_VALUES = 100


@dataclass(slots=True)
class _Metric:
    """A metric as people see it: its series of all attempts, oldest first."""

    name: str
    kind: str
    series: list[MetricSeries] = field(default_factory=list)


def read(
    ctx: Context,
    access: Access,
    job: str,
    *,
    names: list[str],
    points: int | None,
    axis: Axis,
    after: int,
    ghosts: bool,
    smoothing: float = 0.0,
    buckets: bool = False,
) -> bytes:
    """The JSON of core.metrics.MetricsView, written here: a schema would take longer than all the rest."""
    if smoothing and after:
        raise InvalidSpec("Smoothing needs all points, and `after` leaves some out.", hint="Ask without `after`.")
    with ctx.db.read() as session:
        row = find.job(session, access, job)
        found = _metrics(session, row.id)
        wanted = _choose(found, names, row.name)
        starts = _starts(found)
        blocks = _blocks(session, [s.id for m in wanted for s in m.series], after)
    origin = _origin(blocks) if axis == "relative" else 0.0
    chart = _Chart(starts, axis, points, after, origin, smoothing, buckets)
    drawn = {metric.name: lines for metric in wanted if (lines := chart.draw(metric, blocks)) is not None}
    body = {
        "metrics": {name: lines.rows for name, lines in drawn.items()},
        "cursor": row.metrics_cursor,
        "starts": starts,
        "ghosts": {name: lines.ghosts for name, lines in drawn.items() if lines.ghosts} if ghosts else None,
        "smoothed": {name: lines.smoothed for name, lines in drawn.items() if lines.smoothed} if smoothing else None,
        "buckets": {name: lines.buckets for name, lines in drawn.items() if lines.buckets} if buckets else None,
    }
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def names(ctx: Context, access: Access, job: str) -> list[MetricName]:
    from shoal.server.metrics.stitch import cutoffs

    with ctx.db.read() as session:
        row = find.job(session, access, job)
        found = _metrics(session, row.id)
        series_ids = [s.id for m in found for s in m.series]
        about = _blocks(session, series_ids, 0, bodies=False)
        bounds = cutoffs(_starts(found))
        return [_summarise(session, metric, about, bounds) for metric in found]


def last_values(session: Session, job_id: str) -> dict[str, Any]:
    """Metric → its newest value, of the first hundred names."""
    return {m.name: json.loads(m.series[-1].last) for m in _metrics(session, job_id)[:MOST_LAST_VALUES]}


def ledger(ctx: Context, access: Access, job: str) -> list[Record]:
    """Which samples each step used: records of kinds d (data sets) and l, as the workers wrote them."""
    with ctx.db.read() as session:
        return read_others(session, find.job(session, access, job).id, "dl")


def config(ctx: Context, access: Access, job: str) -> Record:
    """The hyperparameters, of the newest attempt that gave any."""
    with ctx.db.read() as session:
        told = read_others(session, find.job(session, access, job).id, "h")
    values = max(told, key=lambda r: r["attempt"], default={}).get("v") if told else {}
    return values if isinstance(values, dict) else {}


def starts(session: Session, job_id: str) -> dict[int, int]:
    """Attempt → its first step."""
    return _starts(_metrics(session, job_id))


def cursor(session: Session, job_id: str) -> int:
    return session.scalar(select(Job.metrics_cursor).where(Job.id == job_id)) or 0


def _metrics(session: Session, job_id: str) -> list[_Metric]:
    """All of a job's, by name. A name used for steps and for evaluations is shown as `eval/NAME` for the latter."""
    rows = list(
        session.scalars(select(MetricSeries).where(MetricSeries.job_id == job_id).order_by(MetricSeries.attempt))
    )
    of_steps = {s.name for s in rows if s.kind == "step"}
    found: dict[tuple[str, str], _Metric] = {}
    for series in rows:
        twice = series.kind == "eval" and series.name in of_steps
        shown = f"eval/{series.name}" if twice else series.name
        found.setdefault((series.kind, shown), _Metric(shown, series.kind)).series.append(series)
    return sorted(found.values(), key=lambda m: (m.kind != "step", m.name))


def _choose(found: list[_Metric], names: list[str], job: str) -> list[_Metric]:
    if not names:
        return found
    known = {m.name: m for m in found}
    for name in names:
        if name not in known:
            raise NotFound(
                f"Job '{job}' has no metric '{name}' (yet).{did_you_mean(name, known)}",
                hint=f"shoal training metrics {job}",
            )
    return [known[name] for name in dict.fromkeys(names)]


def _starts(found: list[_Metric]) -> dict[int, int]:
    """Attempt → its first step; that of its evaluations only where it logged nothing else."""
    starts: dict[int, int] = {}
    for kind in ("step", "eval"):
        first: dict[int, int] = {}
        for series in (s for m in found if m.kind == kind for s in m.series):
            first[series.attempt] = min(series.first_step, first.get(series.attempt, series.first_step))
        starts = first | starts
    return starts


def _blocks(
    session: Session, series_ids: list[int], after: int, *, bodies: bool = True
) -> dict[int, list[MetricBlock]]:
    found: dict[int, list[MetricBlock]] = {}
    for some in in_parts(series_ids):
        query = (
            select(MetricBlock)
            .where(MetricBlock.series_id.in_(some), MetricBlock.last > after)
            .order_by(MetricBlock.series_id, MetricBlock.first, MetricBlock.id)
        )
        for block in session.scalars(query if bodies else query.options(defer(MetricBlock.body))):
            found.setdefault(block.series_id, []).append(block)
    return found


def _origin(blocks: dict[int, list[MetricBlock]]) -> float:
    """When the first of these points was logged."""
    from shoal.server.metrics.columns import Block

    return min((float(Block(b.body).times.min()) for some in blocks.values() for b in some[:1]), default=0.0)


@dataclass(frozen=True, slots=True)
class _Lines:
    """One metric as a chart shows it."""

    rows: list[Any]
    """[x, value] of the points that count."""
    ghosts: list[Any]
    """[x, value, attempt] of the points that later attempts have replaced."""
    smoothed: list[Any] = field(default_factory=list)
    buckets: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Chart:
    starts: dict[int, int]
    axis: Axis
    points: int | None
    after: int
    origin: float
    smoothing: float = 0.0
    buckets: bool = False
    seen: dict[bytes, Any] = field(default_factory=dict)

    def draw(self, metric: _Metric, blocks: dict[int, list[MetricBlock]]) -> _Lines | None:
        """None where nothing came after the cursor."""
        import numpy as np

        from shoal.server.metrics.columns import join
        from shoal.server.metrics.stitch import cutoffs, kept

        parts = [(s, self._part(blocks[s.id])) for s in metric.series if s.id in blocks]
        if not parts:
            return None
        bounds = cutoffs(self.starts)
        mask = kept([p.steps for _, p in parts], [bounds[s.attempt] for s, _ in parts])
        whole = join([p for _, p in parts])
        alive = whole.where(mask)
        attempts = np.repeat([s.attempt for s, _ in parts], [len(p.steps) for _, p in parts])
        ghosts = [] if mask.all() else self._rows(whole.where(~mask), attempts[~mask].tolist())
        if alive.is_mixed or not len(alive.steps):
            return _Lines(self._rows(alive), ghosts)
        return _Lines(
            self._rows(alive),
            ghosts,
            self._smoothed(alive) if self.smoothing else [],
            self._buckets(alive) if self.buckets else [],
        )

    def _smoothed(self, found: Points) -> list[Any]:
        from shoal.server.metrics.smooth import bucket_ends, smoothed
        from shoal.server.metrics.stitch import bucket_size

        size = bucket_size(len(found.steps), self.points)
        x = self._x(found, bucket_ends(len(found.steps), size))
        return list(zip(x, smoothed(found.steps, found.values, self.smoothing, size), strict=True))

    def _buckets(self, found: Points) -> list[Any]:
        from shoal.server.metrics.smooth import buckets
        from shoal.server.metrics.stitch import bucket_size

        x = found.steps if self.axis == "step" else (found.times - self.origin).round(3)
        return buckets(x, found.values, bucket_size(len(found.steps), self.points))

    def _x(self, found: Points, pick: Any) -> list[Any]:
        """Places on the chart's axis."""
        chosen = found.steps[pick] if self.axis == "step" else (found.times[pick] - self.origin).round(3)
        some: list[Any] = chosen.tolist()
        return some

    def _part(self, blocks: list[MetricBlock]) -> Points:
        """Of the columns only those the chart shows are unpacked."""
        from shoal.server.metrics.columns import Block, Points, join

        made = []
        for row in blocks:
            block = Block(row.body, row.first, self.seen)
            times = block.steps if self.axis == "step" else block.times
            if row.first > self.after:
                made.append(Points(block.steps, times, block.values, block.steps))
            else:
                made.append(Points(block.steps, times, block.values, block.arrivals).where(block.arrivals > self.after))
        return join(made)

    def _rows(self, found: Points, attempts: list[int] | None = None) -> list[Any]:
        from shoal.server.metrics.columns import wire
        from shoal.server.metrics.stitch import thin

        pick = thin(found.values, self.points) if self.points else slice(None)
        x = self._x(found, pick)
        values = [wire(v) for v in found.values[pick].tolist()]
        if attempts is None:
            return list(zip(x, values, strict=True))
        some = [attempts[i] for i in pick.tolist()] if self.points else attempts  # type: ignore[union-attr]
        return list(zip(x, values, some, strict=True))


def _summarise(
    session: Session, metric: _Metric, about: dict[int, list[MetricBlock]], bounds: dict[int, int]
) -> MetricName:
    """From what stands beside the blocks; only those of which a part is a ghost are read."""
    from shoal.server.metrics.stitch import END

    count, lowest, highest = 0, [], []
    later = int(END)
    for series in reversed(metric.series):
        for block in reversed(about.get(series.id, [])):
            limit = min(later, bounds[series.attempt])
            later = min(later, block.step_min)
            if block.step_min >= limit:
                continue
            told = (block.count, block.value_min, block.value_max)
            if block.step_max >= limit or not block.rising:
                told = _part_of(session, block.id, limit)
            count += told[0]
            lowest += [told[1]] if told[1] is not None else []
            highest += [told[2]] if told[2] is not None else []
    newest = metric.series[-1]
    return MetricName(
        name=metric.name,
        kind="step" if metric.kind == "step" else "eval",
        count=count,
        last=json.loads(newest.last),
        last_step=newest.last_step,
        min=min(lowest, default=None),
        max=max(highest, default=None),
    )


def _part_of(session: Session, block_id: int, limit: int) -> tuple[int, float | None, float | None]:
    from shoal.server.metrics.columns import Block, summary
    from shoal.server.metrics.stitch import kept

    points = Block(session.scalars(select(MetricBlock.body).where(MetricBlock.id == block_id)).one()).points
    mask = kept([points.steps], [limit])
    if not mask.any():
        return 0, None, None
    told = summary(points.where(mask))
    return told.count, told.value_min, told.value_max
