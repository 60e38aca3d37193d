"""`shoal training metrics` and `ledger`: what a job tells of itself."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from shoal.cli._format import clean, plural
from shoal.cli._output import Column, json_line, out
from shoal.cli._session import connect
from shoal.core.errors import UsageError

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.core.metrics import MetricName, Record
    from shoal.sdk.ledger import Report

CURVE_POINTS = 200


def metrics(
    job: str,
    /,
    *,
    name: Annotated[list[str] | None, Parameter(consume_multiple=False)] = None,
    as_csv: Annotated[bool, Parameter(name="--csv")] = False,
    last: bool = False,
    points: int | None = None,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"))] = False,
) -> None:
    """Show what a job has measured: each metric's last, lowest and highest value, and its curve.

    With --json, every metric with its list of [step, value]. Over several
    attempts it is one history: what a newer attempt did again counts once.

    For example:

      shoal training metrics hello
      shoal training metrics hello --name loss --json
      shoal training metrics hello --csv
      shoal training metrics hello --last
      shoal training metrics hello -f

    Parameters
    ----------
    job
        The job's name or id.
    name
        Only this metric (repeatable).
    as_csv
        Print metric, step and value of every point, with commas between.
    last
        Only the last values.
    points
        Thin each metric to about so many points (at least 4), keeping its peaks; for --json and --csv.
    follow
        Print new points as they come, until the job ends.
    """
    if points is not None and points < 4:
        raise UsageError(f"--points {points}: at least 4.")
    names = name or []
    with connect() as client:
        if follow:
            _follow(client, job, names)
        elif last:
            _print_last(_known(client, job, names))
        elif out.json or as_csv:
            found = client.metrics.read(job, names, points=points)["metrics"]
            out.emit(found) if out.json else out.write(_csv(found))
        else:
            known = _known(client, job, names)
            found = client.metrics.read(job, names, points=CURVE_POINTS, buckets=True) if known else {}
            _table(known, _curves(found))


def ledger(job: str, /, *, audit: bool = False) -> int:
    """Show which samples each step of a job used, as its workers wrote it down.

    With --audit, check it: every sample of an epoch exactly once, over all
    attempts and whatever the number of workers. Exits with 1 if that does not hold.

    For example:

      shoal training ledger hello
      shoal training ledger hello --audit

    Parameters
    ----------
    job
        The job's name or id.
    audit
        Check it and tell what is wrong.
    """
    with connect() as client:
        records = client.metrics.ledger(job)
    if audit:
        return _audit(records)
    rows = [r for r in records if r.get("k") == "l"]
    columns = [
        Column("ATTEMPT", lambda r: r["attempt"], is_right=True),
        Column("RANK", lambda r: r.get("rank", 0), is_right=True),
        Column("DATA", lambda r: r.get("name")),
        Column("EPOCH", lambda r: r.get("e"), is_right=True),
        Column("STEPS", lambda r: _range(r.get("i"))),
        Column("BATCHES", lambda r: _range(r.get("p")), rank=1),
        Column("CHECKSUM", lambda r: r.get("c"), is_right=True, rank=2),
    ]
    empty = "Nothing was written down. A loader given to run.prepare keeps a ledger."
    out.show(records, lambda: out.table(rows, columns, empty=empty))
    return 0


def _known(client: Client, job: str, names: Sequence[str]) -> list[MetricName]:
    known = client.metrics.names(job)
    if names:
        client.metrics.read(job, names, points=4)  # an unknown name is told with its neighbours
    return [m for m in known if not names or m.name in names]


def _curves(found: dict[str, Any]) -> dict[str, list[Any]]:
    """Metric → [x, mean] of each stretch. The points of an older server, which sends no buckets, are lowest and highest values only."""
    means = {name: [(row[1], row[4]) for row in rows] for name, rows in (found.get("buckets") or {}).items()}
    return {**found.get("metrics", {}), **means}


def _table(known: list[MetricName], curves: dict[str, list[Any]]) -> None:
    from shoal.cli._spark import number, sparkline

    columns = [
        Column("METRIC", lambda m: m.name),
        Column("LAST", lambda m: number(m.last), is_right=True),
        Column("MIN", lambda m: number(m.min), is_right=True, rank=2),
        Column("MAX", lambda m: number(m.max), is_right=True, rank=2),
        Column("STEP", lambda m: m.last_step, is_right=True, rank=3),
        Column("POINTS", lambda m: m.count, is_right=True, rank=4),
        Column("CURVE", lambda m: sparkline(curves.get(m.name, [])), rank=1),
    ]
    out.table(known, columns, empty="No metrics yet. A script logs them with run.step(loss=…).")


def _print_last(known: list[MetricName]) -> None:
    if out.json:
        out.emit({m.name: m.last for m in known})
    else:
        out.fields([(clean(m.name), m.last) for m in known])


def _csv(found: dict[str, list[Any]]) -> str:
    made = io.StringIO()
    writer = csv.writer(made, lineterminator="\n")
    writer.writerow(["metric", "step", "value"])
    for metric, rows in found.items():
        writer.writerows([metric, step, value] for step, value in rows)
    return made.getvalue()


def _follow(client: Client, job: str, names: Sequence[str]) -> None:
    from shoal.client.follow import Lost, NewMetrics

    cursor, view = 0, client.jobs.get(job)
    for event in client.jobs.follow(view.id):
        match event:
            case NewMetrics():
                # A metric that is yet to come is no error here.
                page = client.metrics.read(view.id, after=cursor)
                cursor = page["cursor"]
                _print_new({k: v for k, v in page["metrics"].items() if not names or k in names})
            case Lost(error=error):
                out.warn(f"{error.message} The job goes on; waiting for the server.")


def _print_new(found: dict[str, list[Any]]) -> None:
    from shoal.cli._spark import number

    by_step: dict[int, dict[str, Any]] = {}
    for metric, rows in found.items():
        for step, value in rows:
            by_step.setdefault(step, {})[metric] = value
    lines = []
    for step, values in sorted(by_step.items()):
        shown = "  ".join(f"{clean(k)} {number(v)}" for k, v in values.items())
        lines.append(json_line({"step": step, **values}) if out.json else f"step {step}  {shown}\n")
    if lines:
        out.write("".join(lines))


def _audit(records: list[Record]) -> int:
    from dataclasses import asdict

    from shoal.sdk.ledger import Report, audit

    try:
        found = audit(records)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        found = Report(ok=False, difference=f"the ledger holds a record that cannot be read: {error!r}")
    out.show(asdict(found), lambda: _print_audit(found))
    return 0 if found.ok else 1


def _print_audit(found: Report) -> None:
    if found.difference:
        out.error(clean(found.difference))
    elif found.samples:
        out.line(f"Every sample exactly once: {plural(found.epochs, 'epoch')} finished, {found.samples} samples used.")
    if found.superseded:
        out.say(f"  {plural(found.superseded, 'line')} of it were done again after a resume and do not count.")
    for note in found.notes:
        out.say(f"  {clean(note)}")


def _range(pair: Any) -> str | None:
    return f"{pair[0]}–{pair[1]}" if isinstance(pair, list) and len(pair) == 2 else None
