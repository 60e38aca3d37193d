"""Lines of many runs in one chart: metrics and expressions over steps, time or another metric, and means of groups of runs.

Everything is computed from all points, before they are reduced to what a chart can show: expressions, smoothing, means of groups.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.errors import InvalidSpec
from shoal.core.metric_expr import Expression, parse
from shoal.server import lookup
from shoal.server.context import Context
from shoal.server.metrics import reads
from shoal.server.models.metrics import MetricBlock, MetricSeries
from shoal.server.policy import Access

if TYPE_CHECKING:
    from shoal.server.metrics.columns import Floats, Ints, Points
    from shoal.server.metrics.groups import Line

MAX_RUNS, MAX_NAMES = 500, 40
AXES = ("step", "relative", "time")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Metrics, axis, resolution and range of a chart."""

    names: Sequence[str]
    """Metrics or expressions."""
    x: str = "step"
    """step, time, relative, or the name of a metric."""
    points: int = 400
    smoothing: float = 0.0
    span: reads.Span = (None, None)
    times: bool = False
    """True adds the time of each point."""
    ghosts: bool = False
    """True adds the points that later attempts have replaced, one line per attempt."""

    @property
    def needs_times(self) -> bool:
        return self.times or self.x in ("time", "relative")


def query(ctx: Context, access: Access, jobs: Sequence[str], wanted: Wanted) -> bytes:
    """Return the JSON of core.metrics.ChartLines. Each of `jobs` is a job, or several separated by commas: their mean."""
    low, high = wanted.span
    if low is not None and high is not None and low > high:
        raise InvalidSpec(f"The range from {low:g} to {high:g} is empty.", hint="`from` must not exceed `to`.")
    groups = [list(dict.fromkeys(filter(None, job.split(",")))) for job in jobs]
    count = len({job for group in groups for job in group})
    if count > MAX_RUNS or len(wanted.names) > MAX_NAMES:
        raise InvalidSpec(f"A chart can have at most {MAX_RUNS} runs and {MAX_NAMES} metrics.")
    expressions = [parse(name) for name in wanted.names]
    needed = {name for e in expressions for name in e.names} | ({wanted.x} - set(AXES))
    with ctx.db.read() as session:
        ids = {job: lookup.job(session, access, job).id for group in groups for job in group}
        runs, missing = _read(session, sorted(set(ids.values())), needed, wanted)
    lines: list[dict[str, Any]] = []
    for group in groups:
        members = list(dict.fromkeys(ids[job] for job in group))
        for expression in expressions:
            made = [line for job in members if (line := _line(runs[job], expression, wanted)) is not None]
            if not made:
                continue
            body = _single(made[0], wanted) if len(group) == 1 else _of_group(made, wanted)
            if body is not None:
                lines.append({"jobs": members, "name": expression.text, **body})
            if wanted.ghosts and len(group) == 1 and len(expression.names) == 1:
                lines += _ghosts(runs[members[0]], members, expression, wanted)
    return json.dumps({"lines": lines, "missing": missing}, separators=(",", ":")).encode()


@dataclass(slots=True)
class _Run:
    """Metrics of one run, without points that later attempts have replaced."""

    points: dict[str, Points]
    origin: float = 0.0
    ghosts: dict[str, list[tuple[int, Points]]] = field(default_factory=dict)
    """Metric → attempt and points that later attempts have replaced."""


def _read(session: Session, job_ids: list[str], needed: set[str], wanted: Wanted) -> tuple[dict[str, _Run], list[str]]:
    """Return the runs with the metrics that are needed, and those metrics that none of the runs has."""
    from shoal.server.db import in_parts

    columns = (
        MetricSeries.id, MetricSeries.job_id, MetricSeries.attempt, MetricSeries.kind, MetricSeries.name,
        MetricSeries.first_step,
    )  # fmt: skip
    rows: dict[str, list[Any]] = {job_id: [] for job_id in job_ids}
    for some in in_parts(job_ids):
        for row in session.execute(
            select(*columns).where(MetricSeries.job_id.in_(some)).order_by(MetricSeries.attempt)
        ):
            rows[row.job_id].append(row)
    metrics = {job_id: reads.join_series(found) for job_id, found in rows.items()}
    chosen = {job_id: [m for m in found if m.name in needed] for job_id, found in metrics.items()}
    known = {m.name for found in metrics.values() for m in found}
    series = [s.id for found in chosen.values() for m in found for s in m.series]
    blocks: dict[int, list[Any]] = defaultdict(list)
    for some_series in in_parts(series):
        told = select(MetricBlock.series_id, MetricBlock.body).where(MetricBlock.series_id.in_(some_series))
        for block in session.execute(told.order_by(MetricBlock.series_id, MetricBlock.first, MetricBlock.id)):
            blocks[block.series_id].append(block)
    made = {}
    for job_id in job_ids:
        starts = reads.first_steps(metrics[job_id])
        seen: dict[bytes, Any] = {}
        run = made[job_id] = _Run({}, reads.origin(session, job_id) if wanted.x == "relative" else 0.0)
        for metric in chosen[job_id]:
            _add(run, metric, blocks, starts, wanted, seen)
    return made, sorted(needed - known)


def _add(
    run: _Run, metric: Any, blocks: dict[int, list[Any]], starts: dict[int, int], wanted: Wanted, seen: dict[bytes, Any]
) -> None:
    """Add the points of a metric to a run, and those that later attempts have replaced if they are wanted."""
    import numpy as np

    from shoal.server.metrics.columns import Block, Points, join
    from shoal.server.metrics.stitch import kept

    bounds, parts, limits, attempts = metric.bounds(starts), [], [], []
    for series in metric.series:
        for row in blocks.get(series.id, []):
            block = Block(row.body, 0, seen)
            parts.append(
                Points(block.steps, block.times if wanted.needs_times else block.steps, block.values, block.steps)
            )
            limits.append(bounds[series.attempt])
            attempts.append(series.attempt)
    if not parts:
        return
    whole, mask = join(parts), kept([p.steps for p in parts], limits)
    if mask.any():
        run.points[metric.name] = whole.where(mask)
    if wanted.ghosts and not mask.all():
        of = np.repeat(attempts, [len(p.steps) for p in parts])
        lost = [(int(number), whole.where(~mask & (of == number))) for number in np.unique(of[~mask])]
        run.ghosts[metric.name] = lost


def _line(run: _Run, expression: Expression, wanted: Wanted) -> Line | None:
    """Return the points of an expression: at the steps of its rarest metric, with the newest value of each other metric."""
    if not expression.names or any(name not in run.points for name in expression.names):
        return None
    return _evaluated(run, expression, wanted)


def _ghosts(run: _Run, members: list[str], expression: Expression, wanted: Wanted) -> list[dict[str, Any]]:
    """Return a line for each attempt with replaced points, which are as they were logged, not smoothed."""
    found = []
    plain = replace(wanted, smoothing=0.0, times=False)
    (name,) = expression.names
    for attempt, points in run.ghosts.get(name, []):
        line = _evaluated(_Run({**run.points, name: points}, run.origin), expression, wanted)
        body = _single(line, plain) if line is not None else None
        if body is not None:
            found.append({"jobs": members, "name": expression.text, "attempt": attempt, **body})
    return found


def _evaluated(run: _Run, expression: Expression, wanted: Wanted) -> Line | None:
    import numpy as np

    from shoal.server.metrics.groups import Line

    names = expression.names
    rarest = run.points[min(names, key=lambda name: len(run.points[name].steps))]
    steps = rarest.steps
    with np.errstate(all="ignore"):
        values = expression.evaluate({name: _at(run.points[name], steps) for name in names}, _functions())
    values = np.broadcast_to(np.asarray(values, np.float64), steps.shape)
    times = rarest.times if wanted.needs_times else None
    if wanted.x == "step":
        x = steps.astype(np.float64)
    elif wanted.x in ("time", "relative"):
        x = np.round(rarest.times - run.origin, 3)
    elif wanted.x in run.points:
        x = _at(run.points[wanted.x], steps)
    else:
        return None
    keep = np.isfinite(x)
    if not keep.all():
        x, steps, values, times = x[keep], steps[keep], values[keep], None if times is None else times[keep]
    if len(x) > 1 and (np.diff(x) < 0).any():  # clocks go back, and so may a metric
        order = np.argsort(x, kind="stable")
        x, steps, values, times = x[order], steps[order], values[order], None if times is None else times[order]
    return Line(x, steps, values, times) if len(x) else None


def _at(points: Points, steps: Ints) -> Floats:
    """Return the newest value at or before each step; NaN before the first."""
    import numpy as np

    values = points.values
    if points.is_mixed:
        values = np.array([v if isinstance(v, float) else math.nan for v in values.tolist()], np.float64)
    if points.steps is steps or (len(points.steps) == len(steps) and (points.steps == steps).all()):
        return values
    place = np.searchsorted(points.steps, steps, side="right") - 1
    found: Floats = np.where(place >= 0, values[np.maximum(place, 0)], np.nan)
    return found


def _functions() -> dict[str, Any]:
    import functools

    import numpy as np

    return {
        "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "**": np.float_power, "neg": np.negative,
        "abs": np.abs, "exp": np.exp, "log": np.log, "log2": np.log2, "log10": np.log10, "sqrt": np.sqrt,
        "min": lambda *v: functools.reduce(np.minimum, v), "max": lambda *v: functools.reduce(np.maximum, v),
    }  # fmt: skip


def _single(line: Line, wanted: Wanted) -> dict[str, Any] | None:
    """Return the buckets of one run's line within the span."""
    import numpy as np

    from shoal.server.metrics.groups import exact, inside, short
    from shoal.server.metrics.smooth import bucket_ends, smoothed

    part = inside(line.x, wanted.span)
    x, values = line.x[part], line.values[part]
    if not len(x):
        return None
    size = max(1, -(-len(x) // wanted.points))
    ends = bucket_ends(len(x), size)
    starts = np.concatenate([[0], ends[:-1] + 1])
    finite = np.isfinite(values)
    counts = np.add.reduceat(finite.astype(np.int64), starts)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.add.reduceat(np.where(finite, values, 0.0), starts) / np.maximum(counts, 1)
    shorten = short if size > 1 else exact
    body = {"x": exact(x[ends]), "mean": shorten(np.where(counts > 0, mean, np.nan)), "count": len(x)}
    if size > 1:
        low = np.minimum.reduceat(np.where(finite, values, np.inf), starts)
        high = np.maximum.reduceat(np.where(finite, values, -np.inf), starts)
        body |= {"low": exact(low), "high": exact(high), "size": size}
    if wanted.times and line.at is not None:
        body["at"] = exact(line.at[part][ends])
    if wanted.smoothing and line.is_rising:
        body["smooth"] = smoothed(line.steps, line.values, wanted.smoothing, size, part.start, part.stop)
    shown = np.nonzero(np.isfinite(line.values))[0]
    return body | {"last": float(line.values[shown[-1]]) if len(shown) else None}


def _of_group(lines: list[Line], wanted: Wanted) -> dict[str, Any] | None:
    from shoal.server.metrics.groups import mean_of

    return mean_of(lines, points=wanted.points, span=wanted.span, smoothing=wanted.smoothing)
