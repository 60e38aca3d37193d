"""Queries over the runs of a workspace: filter, sort, page, group. SQLite does the work on the rows; groups are summed here."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import func, literal, select
from sqlalchemy.orm import Session

from shoal.core.errors import InvalidSpec
from shoal.core.run_filter import parse
from shoal.core.run_params import Param
from shoal.core.runs import RunColumns, RunGroup, RunRow, RunsPage, Spread
from shoal.core.states import JobState
from shoal.server.context import Context
from shoal.server.db import in_parts
from shoal.server.models.jobs import Job
from shoal.server.models.runs import RunMetric
from shoal.server.policy import Access
from shoal.server.runs import at_step, backfill
from shoal.server.runs.columns import BUILT_IN, Columns, Expr, json_path

_SOME = 500
"""Number of the newest runs whose columns are listed."""
_MOST_IDS = 50
_AT_ONCE = 5000


def query(
    ctx: Context,
    access: Access,
    *,
    q: str = "",
    sort: str = "",
    columns: Sequence[str] = (),
    group: Sequence[str] = (),
    limit: int = 100,
    offset: int = 0,
) -> RunsPage:
    """Return one page of the runs, or groups of runs, that a query matches.

    sort: a column, with `-` in front for descending order; runs without a value come last
    group: columns with equal values; `-seed` stands for all parameters but seed
    """
    terms = parse(q)
    backfill.ensure(ctx, access.workspace_id)
    known = Columns()
    wanted = [known.where(term) for term in terms]
    mentioned = {term.column for term in terms}
    if not mentioned & {"kind", "sweep"}:
        wanted.append(Job.kind == "job")
    if "archived" not in mentioned:
        wanted.append(Job.archived_at.is_(None))
    wanted.append(Job.workspace_id == access.workspace_id)
    names = list(dict.fromkeys(columns))
    with ctx.db.read() as session:
        if group:
            return _groups(session, known, wanted, names, list(group), sort, limit, offset)
        return _rows(session, known, wanted, names, sort, limit, offset)


def columns(ctx: Context, access: Access) -> RunColumns:
    """Return the columns that the newest runs have."""
    backfill.ensure(ctx, access.workspace_id)
    newest = (
        select(Job.id, Job.params, Job.tags)
        .where(Job.workspace_id == access.workspace_id, Job.kind.in_(("job", "trial")))
        .order_by(Job.id.desc())
        .limit(_SOME)
    )
    with ctx.db.read() as session:
        rows = session.execute(newest).all()
        ids = [row.id for row in rows]
        names = set(session.scalars(select(RunMetric.name).where(RunMetric.job_id.in_(ids)).distinct()))
    return RunColumns(
        params=sorted({name for row in rows for name in row.params or {}}),
        metrics=sorted(names, key=lambda n: ("loss" not in n.lower(), n)),
        tags=sorted({tag for row in rows for tag in row.tags}),
    )


def _rows(
    session: Session, known: Columns, wanted: list[Any], names: list[str], sort: str, limit: int, offset: int
) -> RunsPage:
    by_step = at_step.is_at_step(sort.removeprefix("-"))
    order, is_descending = _sort_key(known, "-created" if by_step or not sort else sort)
    first = (
        known.joined(select(Job.id).select_from(Job))
        .where(*wanted)
        .order_by(order.is_(None), order.desc() if is_descending else order.asc(), Job.id.desc())
    )
    everything = list(session.scalars(first))  # counting in a second query would cost as much again
    if by_step:
        everything = _by_step(session, everything, sort)
    ids = everything[offset : offset + limit]
    late = [name for name in names if at_step.is_at_step(name)]
    plain = [name for name in names if name not in late]
    # The values of the page only: sorting rows that carry all their columns would cost several times as much.
    shown = Columns()
    cells = [shown.of(name).label(f"v{n}") for n, name in enumerate(plain)]
    query = shown.joined(select(*_FIXED, *cells).select_from(Job))
    found = {row.id: row for some in in_parts(ids, _AT_ONCE) for row in session.execute(query.where(Job.id.in_(some)))}
    rows = [_row(found[job_id], plain) for job_id in ids if job_id in found]
    for name in late:
        at = at_step.values(session, [row.id for row in rows], name)
        for row in rows:
            row.values[name] = at.get(row.id)
    return RunsPage(rows=rows, total=len(everything), columns=names)


def _by_step(session: Session, ids: list[str], sort: str) -> list[str]:
    """Return the runs sorted by a metric at a step; those without a value last."""
    values = at_step.values(session, ids, sort.removeprefix("-"))
    sign = -1 if sort.startswith("-") else 1
    return sorted(ids, key=lambda job_id: (job_id not in values, sign * values.get(job_id, 0.0)))


_DURATION = Columns().of("duration").label("duration_s")
_FIXED: tuple[Any, ...] = (
    Job.id, Job.name, Job.title, Job.kind, Job.state, Job.created_by, Job.tags, Job.starred, Job.archived_at,
    Job.created_at, _DURATION,
)  # fmt: skip


def _row(row: Any, names: list[str]) -> RunRow:
    return RunRow(
        id=row.id,
        name=row.name,
        title=row.title,
        kind=row.kind,
        status=JobState(row.state),
        user=row.created_by,
        tags=row.tags,
        starred=row.starred,
        archived=row.archived_at is not None,
        created_at=row.created_at,
        duration_s=None if row.duration_s is None else round(max(0.0, row.duration_s), 3),
        values={name: _cell(getattr(row, f"v{n}")) for n, name in enumerate(names)},
    )


def _groups(
    session: Session,
    known: Columns,
    wanted: list[Any],
    names: list[str],
    group: list[str],
    sort: str,
    limit: int,
    offset: int,
) -> RunsPage:
    others = [name.removeprefix("-") for name in group if name.startswith("-")]
    by = [name for name in group if not name.startswith("-")]
    keys = [*map(known.of, by), *([_all_but([*others, *by])] if others else [])]
    order = sort.removeprefix("-")
    values = [*names, *([order] if order and order not in ("runs", *names) else [])]
    late = [name for name in values if at_step.is_at_step(name)]
    if any(at_step.is_at_step(name) for name in by):
        raise InvalidSpec("Runs cannot be grouped by a metric at a step.", hint="Group by a parameter: group=lr")
    cells = [literal(None) if name in late else known.of(name) for name in values]
    labelled = [e.label(f"c{n}") for n, e in enumerate([*keys, *cells])]
    query = known.joined(select(Job.id, *labelled).select_from(Job)).where(*wanted).order_by(Job.id.desc())
    found: dict[tuple[Any, ...], list[Any]] = {}
    start = 1 + len(keys)
    for row in _with_late(session, session.execute(query).all(), values, late, start):
        found.setdefault(tuple(row[1:start]), []).append(row)
    spreads = {
        key: {name: spread(row[start + n] for row in rows) for n, name in enumerate(values)}
        for key, rows in found.items()
    }
    ordered = sorted(found, key=lambda key: _rank(found[key], spreads[key], sort))
    titles = _titles(found, by, has_params=bool(others))
    groups = [
        RunGroup(
            key=titles[key],
            runs=len(found[key]),
            ids=[row[0] for row in found[key][:_MOST_IDS]],
            values={name: spreads[key][name] for name in names},
        )
        for key in ordered[offset : offset + limit]
    ]
    return RunsPage(rows=[], groups=groups, total=len(found), columns=names)


def _with_late(
    session: Session, rows: Sequence[Any], values: list[str], late: list[str], start: int
) -> Iterable[Sequence[Any]]:
    """Return the rows with the values of metrics at steps in their places."""
    if not late:
        return rows
    made = [list(row) for row in rows]
    for name in late:
        at, place = at_step.values(session, [row[0] for row in made], name), start + values.index(name)
        for row in made:
            row[place] = at.get(row[0])
    return made


def spread(values: Iterable[Any]) -> Spread:
    """Return mean and spread of the finite numbers among values."""
    numbers = [float(v) for v in values if isinstance(v, int | float) and math.isfinite(v)]
    if not numbers:
        return Spread(mean=None, std=None, min=None, max=None, count=0)
    mean = statistics.fmean(numbers)
    std = None
    if len(numbers) > 1:
        scale = max(map(abs, numbers)) or 1.0  # squares of huge numbers would overflow
        std = scale * math.sqrt(math.fsum(((v - mean) / scale) ** 2 for v in numbers) / (len(numbers) - 1))
    return Spread(mean=mean, std=std, min=min(numbers), max=max(numbers), count=len(numbers))


def _all_but(names: list[str]) -> Expr:
    """Return the parameters without some, as JSON text. They are stored in order of their names, so equal ones are equal texts."""
    found: Expr = func.json_remove(func.coalesce(Job.params, "{}"), *map(json_path, names))
    return found


def _titles(
    found: dict[tuple[Any, ...], list[Any]], by: list[str], *, has_params: bool
) -> dict[tuple[Any, ...], dict[str, Param]]:
    """Return group → its columns; of all parameters but some, which come last in a key, only those in which the groups differ."""
    columns = {key: {name: _cell(v) for name, v in zip(by, key, strict=False)} for key in found}
    if not has_params:
        return columns
    params: dict[tuple[Any, ...], dict[str, Param]] = {key: json.loads(key[-1]) for key in found}
    differing = sorted(
        name
        for name in {n for values in params.values() for n in values}
        if len({json.dumps(values.get(name)) for values in params.values()}) > 1
    )
    return {key: columns[key] | {name: values.get(name) for name in differing} for key, values in params.items()}


def _rank(rows: list[Any], spreads: dict[str, Spread], sort: str) -> tuple[Any, ...]:
    name, sign = sort.removeprefix("-"), -1 if sort.startswith("-") else 1
    if not name or name == "runs":
        return (False, (sign if name else -1) * len(rows), rows[0][0])
    mean = spreads[name].mean
    return (mean is None, sign * (mean or 0.0), rows[0][0])


def _sort_key(known: Columns, sort: str) -> tuple[Expr, bool]:
    name = sort.removeprefix("-")
    return (Job.id.expression if name == "created" else known.of(name)), sort.startswith("-")


def _cell(value: Any) -> Param:
    return value if value is None or isinstance(value, str | int | float) else str(value)


__all__ = ["BUILT_IN", "columns", "query", "spread"]
