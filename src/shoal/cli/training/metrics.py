"""`shoal training metrics` and `ledger`: a job's metrics, and its log of the samples that each step used."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from shoal.cli.shared.format import clean, plural
from shoal.cli.shared.output import Column, json_line, out
from shoal.cli.shared.session import connect
from shoal.core.errors import UsageError
from shoal.core.records import Kind

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.core.metrics import MetricName, Record
    from shoal.sdk.samples.sample_log import Report

CURVE_POINTS = 200
_EMPTY = (
    "No metrics yet. They are read off lines such as `epoch 0 loss 1.17`; for every step, add the SDK's lines to the "
    "script:\n  shoal instrument SCRIPT.py"
)


def metrics(
    job: str,
    /,
    *,
    name: Annotated[list[str] | None, Parameter(consume_multiple=False)] = None,
    as_csv: Annotated[bool, Parameter(name="--csv")] = False,
    last: bool = False,
    points: int | None = None,
    start: Annotated[int | None, Parameter(name="--from")] = None,
    end: Annotated[int | None, Parameter(name="--to")] = None,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"))] = False,
) -> None:
    """Show a job's metrics: the last, lowest and highest value of each, and its curve.

    With --json, print a list of [step, value] for each metric. Several
    attempts are merged into one history: steps that were repeated by a later
    attempt are counted once. Of scripts that log nothing with the SDK, metrics
    are read off their output (switch off: --env SHOAL_LOG_METRICS=0).

    For example:

      shoal training metrics hello
      shoal training metrics hello --name loss --json
      shoal training metrics hello --csv
      shoal training metrics hello --name loss --from 9000 --to 9500 --csv
      shoal training metrics hello --last
      shoal training metrics hello -f

    Parameters
    ----------
    job
        The job's name or id.
    name
        Show only this metric (repeatable).
    as_csv
        Print metric, step and value of every point as CSV.
    last
        Show only the last values.
    points
        Reduce each metric to about this many points (at least 4), keeping its peaks; for --json and --csv.
    start
        Leave out the steps before this one; for curves, --json and --csv.
    end
        Leave out the steps after this one; for curves, --json and --csv.
    follow
        Print new points until the job ends.
    """
    if points is not None and points < 4:
        raise UsageError(f"--points {points}: the minimum is 4.")
    names = name or []
    with connect() as client:
        if follow:
            _follow(client, job, names)
        elif last:
            _print_last(_known(client, job, names))
        elif out.json or as_csv:
            found = client.metrics.read(job, names, points=points, start=start, end=end)["metrics"]
            out.emit(found) if out.json else out.write(_csv(found))
        else:
            known = _known(client, job, names)
            part: dict[str, Any] = {"points": CURVE_POINTS, "start": start, "end": end}
            found = client.metrics.read(job, names, buckets=True, **part) if known else {}
            _table(known, _curves(found))


def samples(job: str, /, *, audit: bool = False) -> int:
    """Show which samples each step of a job used, as recorded by its workers (the sample log).

    With --audit, check that every sample of an epoch was used exactly once,
    over all attempts and any number of workers. Exits 1 if not.

    For example:

      shoal training samples hello
      shoal training samples hello --audit

    Parameters
    ----------
    job
        The job's name or id.
    audit
        Check the sample log and report what is wrong.
    """
    with connect() as client:
        records = client.metrics.ledger(job)
    if audit:
        return _audit(records)
    rows = [r for r in records if r.get("k") == Kind.SAMPLES]
    columns = [
        Column("ATTEMPT", lambda r: r["attempt"], is_right=True),
        Column("RANK", lambda r: r.get("rank", 0), is_right=True),
        Column("DATA", lambda r: r.get("name")),
        Column("EPOCH", lambda r: r.get("e"), is_right=True),
        Column("STEPS", lambda r: _range(r.get("i"))),
        Column("BATCHES", lambda r: _range(r.get("p")), rank=1),
        Column("CHECKSUM", lambda r: r.get("c"), is_right=True, rank=2),
    ]
    empty = f"No samples were recorded. A loader passed to run.prepare records them: {out.prog} instrument SCRIPT.py"
    out.show(records, lambda: out.table(rows, columns, empty=empty))
    return 0


def _known(client: Client, job: str, names: Sequence[str]) -> list[MetricName]:
    known = client.metrics.names(job)
    if names:
        client.metrics.read(job, names, points=4)  # raises an error with similar names if a name is unknown
    return [m for m in known if not names or m.name in names]


def _curves(found: dict[str, Any]) -> dict[str, list[Any]]:
    """Return a mapping of metric → [x, mean] of each bucket.

    An older server sends no buckets; its points (lowest and highest values) are used instead.
    """
    means = {name: [(row[1], row[4]) for row in rows] for name, rows in (found.get("buckets") or {}).items()}
    return {**found.get("metrics", {}), **means}


def _table(known: list[MetricName], curves: dict[str, list[Any]]) -> None:
    from shoal.cli.training.spark import number, sparkline

    columns = [
        Column("METRIC", lambda m: m.name),
        Column("LAST", lambda m: number(m.last), is_right=True),
        Column("MIN", lambda m: number(m.min), is_right=True, rank=2),
        Column("MAX", lambda m: number(m.max), is_right=True, rank=2),
        Column("STEP", lambda m: m.last_step, is_right=True, rank=3),
        Column("POINTS", lambda m: m.count, is_right=True, rank=4),
        Column("CURVE", lambda m: sparkline(curves.get(m.name, [])), rank=1),
    ]
    out.table(known, columns, empty=_EMPTY)
    if any(m.kind == "log" for m in known):
        out.dim(f"Read off the script's output. For exact values at every step: {out.prog} instrument SCRIPT.py")


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
                # Read all metrics and filter here: asking for one that does not exist yet would be an error.
                page = client.metrics.read(view.id, after=cursor)
                cursor = page["cursor"]
                _print_new({k: v for k, v in page["metrics"].items() if not names or k in names})
            case Lost(error=error):
                out.warn(f"{error.message} The job continues; waiting for the server.")


def _print_new(found: dict[str, list[Any]]) -> None:
    from shoal.cli.training.spark import number

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

    from shoal.sdk.samples.sample_log import Report, audit

    try:
        found = audit(records)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        found = Report(ok=False, difference=f"the sample log has a record that cannot be read: {error!r}")
    out.show(asdict(found), lambda: _print_audit(found))
    return 0 if found.ok else 1


def _print_audit(found: Report) -> None:
    if found.difference:
        out.error(clean(found.difference))
    elif found.samples:
        out.line(
            f"Every sample was used exactly once: {plural(found.epochs, 'epoch')} finished, {found.samples} samples used."
        )
    if found.superseded:
        out.info(f"  {plural(found.superseded, 'record')} not counted: repeated after a resume.")
    for note in found.notes:
        out.info(f"  {clean(note)}")


def _range(pair: Any) -> str | None:
    return f"{pair[0]}–{pair[1]}" if isinstance(pair, list) and len(pair) == 2 else None
