"""`shoal training drill`: inject faults into a short copy of a job and report how it recovers."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from shoal.cli.shared.format import clean, plural
from shoal.cli.shared.job_flags import JobFlags, check_job, many
from shoal.cli.shared.output import Column, out
from shoal.cli.shared.parse import parse_duration
from shoal.cli.shared.session import connect, session
from shoal.cli.shared.signals import terminable
from shoal.cli.shared.source import SourceChoice, send_source
from shoal.cli.shared.spec_file import read_spec
from shoal.core import start_seed
from shoal.core.errors import NotFound, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.client import Client
    from shoal.core.drills import Plan
    from shoal.core.jobs import JobSpec, JobView

FAULTS = Group("Faults", sort_key=0)
LOWEST = -100
"""Lowest of all priorities: a drill never delays or preempts another job."""
_LIMIT = "1h"


def drill(
    *entry: str,
    flags: JobFlags | None = None,
    kill: Annotated[list[str] | None, many("--kill", group=FAULTS)] = None,
    sigterm: Annotated[list[str] | None, many("--sigterm", group=FAULTS)] = None,
    slow: Annotated[list[str] | None, many("--slow", group=FAULTS)] = None,
    server_down: Annotated[list[str] | None, many("--server-down", group=FAULTS)] = None,
    steps: Annotated[int | None, Parameter(group=FAULTS)] = None,
    keep: Annotated[bool, Parameter(group=FAULTS)] = False,
) -> int:
    """Inject faults into a short copy of a job and report how it recovers.

    Two copies run one after the other: one undisturbed, one with faults at the
    steps you name. For each fault, the report says whether the job survived,
    how many steps were lost, whether later metrics equal those of the
    undisturbed copy bit by bit, and how many seconds the recovery took. Other
    jobs are not affected, and both copies are deleted at the end. Accepts a
    job's name, its spec as JSON, or the options of `training run`. Exits 0 if
    the job survived all faults, resumed from its checkpoints and gave the same
    results; 1 if not.

    For example:

      shoal training drill hello --kill rank0@30
      shoal training drill hello --kill rank1@30 --sigterm node0@50 \\
          --slow rank1:3x --server-down 20s --json
      shoal training drill --accels 2 --kill rank1@30 -- train.py --lr 3e-4

    Parameters
    ----------
    entry
        Name or id of a job, a file with its spec as JSON, or the script and its arguments after `--`.
    kill
        Send SIGKILL to a worker (rank1@30: after step 30), or to a node with its agent (node0@30).
    sigterm
        Send SIGTERM, as when a machine is reclaimed: node0@50, or rank1@50.
    slow
        Slow down a worker by a factor: rank1:3x, or rank1:3x@10-20 from step 10 to 20.
    server_down
        Make the server unreachable for this job: 20s (10 steps after all other faults), or 20s@40.
    steps
        Number of steps of each copy (default: 20 after the last fault).
    keep
        Keep both copies for inspection.
    """
    from shoal.cli.training.drill_evidence import collect
    from shoal.cli.training.drill_faults import plan
    from shoal.cli.training.drill_report import check, report
    from shoal.core.drills import Plan

    planned = plan(kill or [], sigterm or [], slow or [], server_down or [], steps)
    with connect() as client:
        spec = _wanted(client, entry, flags or JobFlags(), planned)
        with _copies(client, spec, keep=keep) as run:
            out.info(f"Running an undisturbed copy, {planned.stop_at} steps …")
            reference = collect(client, run("undisturbed", Plan(planned.stop_at)).id)
            check(planned, reference)
            out.info(
                f"Running a copy with {plural(len(planned.faults), 'fault')}: {', '.join(f.text for f in planned.faults)} …"
            )
            drilled = collect(client, run("drilled", planned).id)
    found = report(planned, reference, drilled)
    out.show(found, lambda: show(found))
    return 0 if found["survived"] and found["resumed"] and found["exact"] is not False else 1


def show(found: dict[str, Any]) -> None:
    from shoal.cli.training.drill_report import describe

    if found["survived"] and found["resumed"]:
        out.styled(("The job survived.", "bold green"))
    elif found["survived"]:
        out.styled(("The job survived, but did NOT resume from its checkpoints.", "bold yellow"))
    else:
        out.styled(("The job did NOT survive.", "bold red"))
    columns = [
        Column("FAULT", lambda r: r["fault"]),
        Column("SURVIVED", lambda r: _yes_no(r["survived"])),
        Column("STEPS LOST", lambda r: r["steps_lost"], is_right=True, rank=2),
        Column("EXACT", lambda r: _yes_no(r["exact"])),
        Column(
            "RECOVERED IN",
            lambda r: None if r["recover_s"] is None else f"{r['recover_s']:.1f} s",
            is_right=True,
            rank=1,
        ),
        Column("", lambda r: r["note"], is_text=True),
    ]
    out.table(found["faults"], columns)
    out.line()
    for row in found["faults"]:
        if row["first_difference"]:
            out.line(f"After {row['fault']} the results differ: {clean(describe(row['first_difference']))}")
    out.fields(
        [
            ("sample order", _sample_order_text(found["sample_order"])),
            ("compared", ", ".join(map(clean, found["compared"]))),
            ("ended", _ended(found)),
        ]
    )
    for note in found["notes"]:
        out.line(clean(note))


def _wanted(client: Client, entry: Sequence[str], flags: JobFlags, planned: Plan) -> JobSpec:
    """Return the spec of the named job, or of one described as for `training run`.

    Raises UsageError before anything is uploaded if the faults do not fit the job.
    """
    from shoal.cli.training.drill_faults import check_targets

    after = session.after_dashes or 0
    before = entry[: len(entry) - after]
    if len(before) > 1:
        raise UsageError(
            f"Unexpected argument {' '.join(map(repr, before[1:]))}. Only one job can be given before `--`.",
            hint=f"{out.prog} training drill JOB --kill rank0@30",
        )
    limit_s = max(1, round(parse_duration(flags.time_limit or _LIMIT, "--time-limit")))
    if after:
        choice = flags.choice()
        stem = "".join(c for c in PurePosixPath(entry[-after]).stem if c.isascii() and (c.isalnum() or c in "_-"))
        name = before[0] if before else stem.strip("_-") or "job"
        spec = check_job(name, entry[-after:], flags.wanted(), choice, command="training drill")
        check_targets(planned, nodes=spec.max_nodes, accels=spec.accels)
        spec.source_id, spec.entry = send_source(client, choice, entry[-after:])
    elif not before:
        raise UsageError("No job or script given.", hint=f"{out.prog} training drill JOB --kill rank0@30")
    elif replace(flags, time_limit=None) != JobFlags():
        raise UsageError(
            f"'{before[0]}' is an existing job; its options cannot be changed.",
            hint=f"To drill a script with other options: {out.prog} training drill [OPTIONS] -- train.py",
        )
    elif (file := Path(before[0])).suffix == ".json" and file.is_file():
        spec = read_spec(file)
        check_targets(planned, nodes=spec.max_nodes, accels=spec.accels)
        if not spec.source_id:
            spec.source_id, spec.entry = send_source(client, SourceChoice(folder=file.parent), spec.entry)
    else:
        job = client.jobs.get(before[0])
        spec = job.spec.model_copy(update={"min_nodes": job.nodes, "max_nodes": job.nodes})
        check_targets(planned, nodes=job.nodes, accels=job.accels)
    return spec.model_copy(update={"time_limit_s": limit_s})


@contextmanager
def _copies(client: Client, spec: JobSpec, *, keep: bool) -> Iterator[Any]:
    """Yield a function that runs one copy until it ends. All copies are removed at the end, also after errors and ^C."""
    tag, seed = secrets.token_hex(2), start_seed.new()
    made: dict[str, JobView | None] = {}

    def run(what: str, planned: Plan) -> JobView:
        from shoal.core.drills import VARIABLE

        name = f"{spec.name[:40]}-drill-{tag}-{what}"
        changes = {
            "name": name,
            "min_nodes": spec.max_nodes,
            "env": spec.env | {VARIABLE: planned.dump(), start_seed.VARIABLE: seed},
            "priority": LOWEST,
            "batch": None,
        }
        made[name] = None  # if the request is interrupted, the job may exist
        made[name] = job = client.jobs.create(spec.model_copy(update=changes))
        made[name] = ended = client.jobs.wait(job.id)
        out.dim(f"  {ended.name} has ended: {ended.status}")
        return ended

    with terminable():
        try:
            yield run
        except KeyboardInterrupt:
            out.end_line()
            out.info("Interrupted: stopping the copies …" if keep else "Interrupted: removing the copies …")
            raise
        finally:
            for name, job in made.items():
                _remove(client, name, job, keep=keep)


def _remove(client: Client, name: str, job: JobView | None, *, keep: bool) -> None:
    with suppress(NotFound):
        job = job or client.jobs.get(name)
        if not job.status.is_terminal and not client.jobs.get(job.id).status.is_terminal:
            client.jobs.stop(job.id)
            client.jobs.wait(job.id)
        if keep:
            return
        for checkpoint in client.checkpoints.list(job.id):
            client.checkpoints.delete(checkpoint.id)
        client.jobs.delete(job.id)


def _yes_no(value: bool | None) -> str:
    return "unknown" if value is None else "yes" if value else "NO"


def _sample_order_text(order: dict[str, Any]) -> str:
    if order["difference"]:
        return clean(str(order["difference"]))
    return "each sample once, in order" if order["checked"] else "unknown: no data loader was prepared"


def _ended(found: dict[str, Any]) -> str:
    ended = found["ended"]
    reason = f": {clean(ended['reason'])}" if ended["reason"] and ended["status"] != "succeeded" else ""
    return f"{ended['status']} at step {ended['step']} of {found['steps']}{reason}"
