"""Reading of metrics: one history over all attempts, thinned to the points a chart can show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session, defer

from shoal.core.errors import InvalidSpec, NotFound
from shoal.core.metrics import Axis, MetricName, Record
from shoal.core.names import did_you_mean
from shoal.core.records import Kind
from shoal.server import lookup
from shoal.server.context import Context
from shoal.server.db import in_parts
from shoal.server.metrics.writes import read_others
from shoal.server.models.jobs import Job
from shoal.server.models.metrics import MetricBlock, MetricSeries, display_name
from shoal.server.policy import Access

if TYPE_CHECKING:
    from shoal.server.metrics.columns import Points

MOST_LAST_VALUES = 100
Span = tuple[float | None, float | None]
"""First and last x of the part of a chart that is read; None if it is open on that side."""


@dataclass(slots=True)
class _Metric:
    """Metric as users see it: its series of all attempts, oldest first."""

    name: str
    kind: str
    series: list[MetricSeries] = field(default_factory=list)

    def bounds(self, starts: dict[int, int]) -> dict[int, int]:
        """Return attempt → first step at which a later attempt replaces it. `starts`: attempt → first step of the job.

        Metrics read off the output count in steps or epochs, each in its own unit, so each has its own first steps.
        """
        from shoal.server.metrics.stitch import cutoffs

        return cutoffs({s.attempt: s.first_step for s in self.series} if self.kind == "log" else starts)


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
    span: Span = (None, None),
) -> bytes:
    """Return the JSON of core.metrics.MetricsView.

    Written here, because a pydantic model would take longer than all the rest.
    """
    if span[0] is not None and span[1] is not None and span[0] > span[1]:
        raise InvalidSpec(f"The range from {span[0]:g} to {span[1]:g} is empty.", hint="`from` must not exceed `to`.")
    if smoothing and after:
        raise InvalidSpec("Smoothing needs all points, and `after` leaves some out.", hint="Leave out `after`.")
    with ctx.db.read() as session:
        row = lookup.job(session, access, job)
        found = _metrics(session, row.id)
        wanted = _choose(found, names, row.name)
        starts = first_steps(found)
        blocks = _blocks(session, [s.id for m in wanted for s in m.series], after)
        begin = origin(session, row.id) if axis == "relative" else 0.0
    chart = _Chart(starts, axis, points, after, begin, smoothing, buckets, span)
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
    with ctx.db.read() as session:
        return summaries(session, lookup.job(session, access, job).id)


def summaries(session: Session, job_id: str) -> list[MetricName]:
    """Return the summary of every metric of a job, without points that later attempts have replaced."""
    found = _metrics(session, job_id)
    about = _blocks(session, [s.id for m in found for s in m.series], 0, bodies=False)
    starts = first_steps(found)
    return [_summarise(session, metric, about, metric.bounds(starts)) for metric in found]


def last_values(session: Session, job_id: str) -> dict[str, Any]:
    """Return metric → newest value, for the first `MOST_LAST_VALUES` names."""
    return {m.name: json.loads(m.series[-1].last) for m in _metrics(session, job_id)[:MOST_LAST_VALUES]}


def ledger(ctx: Context, access: Access, job: str) -> list[Record]:
    """Return the sample log, which samples each step used: records of kinds d (data sets) and l, as the workers wrote them."""
    with ctx.db.read() as session:
        return read_others(session, lookup.job(session, access, job).id, (Kind.DATA, Kind.SAMPLES))


def config(ctx: Context, access: Access, job: str) -> Record:
    """Return the hyperparameters of the newest attempt that logged any."""
    with ctx.db.read() as session:
        return config_of(session, lookup.job(session, access, job).id)


def config_of(session: Session, job_id: str) -> Record:
    told = read_others(session, job_id, (Kind.CONFIG,))
    values = max(told, key=lambda r: r["attempt"], default={}).get("v") if told else {}
    return values if isinstance(values, dict) else {}


def starts(session: Session, job_id: str) -> dict[int, int]:
    """Return attempt → first step."""
    return first_steps(_metrics(session, job_id))


def cursor(session: Session, job_id: str) -> int:
    return session.scalar(select(Job.metrics_cursor).where(Job.id == job_id)) or 0


def _metrics(session: Session, job_id: str) -> list[_Metric]:
    """Return all metrics of a job, by name. A name that steps use too is shown as `eval/NAME` or `log/NAME`."""
    rows = list(
        session.scalars(select(MetricSeries).where(MetricSeries.job_id == job_id).order_by(MetricSeries.attempt))
    )
    return join_series(rows)


def join_series(rows: Sequence[Any]) -> list[_Metric]:
    """Return the metrics that series of one job belong to; `rows`: series, oldest attempt first."""
    of_steps = {s.name for s in rows if s.kind == "step"}
    found: dict[tuple[str, str], _Metric] = {}
    for series in rows:
        shown = display_name(series.kind, series.name, of_steps)
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


def first_steps(found: list[_Metric]) -> dict[int, int]:
    """Return attempt → first step; that of its evaluations, or of metrics read off its output, only if there is nothing else."""
    starts: dict[int, int] = {}
    for kind in ("step", "eval", "log"):
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


def origin(session: Session, job_id: str) -> float:
    """Return the time of the job's first point: of all its metrics, whichever of them are read."""
    from shoal.server.metrics.columns import Block

    ours = select(MetricSeries.id).where(MetricSeries.job_id == job_id)
    earliest = select(func.min(MetricBlock.first)).where(MetricBlock.series_id.in_(ours)).scalar_subquery()
    query = select(MetricBlock.body).where(MetricBlock.series_id.in_(ours), MetricBlock.first == earliest)
    seen: dict[bytes, Any] = {}
    return min((float(Block(body, seen=seen).times.min()) for body in session.scalars(query)), default=0.0)


@dataclass(frozen=True, slots=True)
class _Lines:
    """Lines of one metric in a chart."""

    rows: list[Any]
    """[x, value] of the current points."""
    ghosts: list[Any]
    """[x, value, attempt] of the points that later attempts have replaced."""
    smoothed: list[Any] = field(default_factory=list)
    buckets: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Chart:
    """Options of a chart, and the drawing of its metrics."""

    starts: dict[int, int]
    axis: Axis
    points: int | None
    after: int
    origin: float
    smoothing: float = 0.0
    buckets: bool = False
    span: Span = (None, None)
    seen: dict[bytes, Any] = field(default_factory=dict)

    def draw(self, metric: _Metric, blocks: dict[int, list[MetricBlock]]) -> _Lines | None:
        """Return the lines of a metric; None if nothing arrived after the cursor."""
        import numpy as np

        from shoal.server.metrics.columns import join
        from shoal.server.metrics.stitch import kept

        parts = [(s, self._part(blocks[s.id])) for s in metric.series if s.id in blocks]
        if not parts:
            return None
        bounds = metric.bounds(self.starts)
        mask = kept([p.steps for _, p in parts], [bounds[s.attempt] for s, _ in parts])
        whole = join([p for _, p in parts])
        alive = whole.where(mask)
        attempts = np.repeat([s.attempt for s, _ in parts], [len(p.steps) for _, p in parts])
        ghosts = [] if mask.all() else self._ghosts(whole.where(~mask), attempts[~mask])
        inside = self._inside(alive)
        shown = alive.where(inside)
        if alive.is_mixed or not len(shown.steps):
            return _Lines(self._rows(shown), ghosts)
        return _Lines(
            self._rows(shown),
            ghosts,
            self._smoothed(alive, inside) if self.smoothing else [],
            self._buckets(shown) if self.buckets else [],
        )

    def _inside(self, found: Points) -> Any:
        """Return a mask of the points within the span."""
        import numpy as np

        low, high = self.span
        x, inside = self._axis(found), np.ones(len(found.steps), np.bool_)
        if low is not None:
            inside &= x >= low
        if high is not None:
            inside &= x <= high
        return inside

    def _smoothed(self, found: Points, inside: Any) -> list[Any]:
        from shoal.server.metrics.smooth import bucket_ends, smoothed
        from shoal.server.metrics.stitch import bucket_size

        at = inside.nonzero()[0]
        first, end = int(at[0]), int(at[-1]) + 1
        size = bucket_size(end - first, self.points)
        ends = first + bucket_ends(end - first, size)
        x = self._axis(found)[ends].tolist()
        values = smoothed(found.steps, found.values, self.smoothing, size, first, end)
        # Clocks may go back, so on a time axis some points between the first and the last can lie outside.
        return [pair for pair, is_in in zip(zip(x, values, strict=True), inside[ends], strict=True) if is_in]

    def _buckets(self, found: Points) -> list[Any]:
        from shoal.server.metrics.smooth import buckets
        from shoal.server.metrics.stitch import bucket_size

        return buckets(self._axis(found), found.values, bucket_size(len(found.steps), self.points))

    def _axis(self, found: Points) -> Any:
        """Return the positions of points on the chart's x axis."""
        return found.steps if self.axis == "step" else (found.times - self.origin).round(3)

    def _ghosts(self, found: Points, attempts: Any) -> list[Any]:
        inside = self._inside(found)
        return self._rows(found.where(inside), attempts[inside].tolist()) if inside.any() else []

    def _part(self, blocks: list[MetricBlock]) -> Points:
        """Return the points of blocks; unpacks only the columns that the chart shows."""
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
        x = self._axis(found)[pick].tolist()
        values = [wire(v) for v in found.values[pick].tolist()]
        if attempts is None:
            return list(zip(x, values, strict=True))
        some = [attempts[i] for i in pick.tolist()] if self.points else attempts  # type: ignore[union-attr]
        return list(zip(x, values, some, strict=True))


def _summarise(
    session: Session, metric: _Metric, about: dict[int, list[MetricBlock]], bounds: dict[int, int]
) -> MetricName:
    """Summarise a metric from the facts stored beside its blocks.

    Reads only blocks in which some points are replaced (ghosts).
    """
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
        kind=metric.kind,  # type: ignore[arg-type]
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
