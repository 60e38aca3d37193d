"""`shoal training drill`: break a short copy of a job on purpose, and tell how it took it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from shoal.cli._format import clean, plural
from shoal.cli._job_flags import JobFlags, check_job, many
from shoal.cli._output import Column, out
from shoal.cli._parse import parse_duration
from shoal.cli._session import connect, session
from shoal.cli._signals import terminable
from shoal.cli._source import SourceChoice, send_source
from shoal.cli._spec_file import read_spec
from shoal.core import start_seed
from shoal.core.errors import NotFound, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.client import Client
    from shoal.core.drills import Plan
    from shoal.core.jobs import JobSpec, JobView

FAULTS = Group("What is to break", sort_key=0)
LOWEST = -100
"""Of all priorities: a drill makes no other job wait or end."""
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
    """Break a short copy of a job on purpose, and tell how it took it.

    Two copies run one after the other: one undisturbed, one that is broken at
    the steps you name. For each fault you are told whether it was survived,
    how many steps were lost, whether the numbers afterwards are those of the
    undisturbed copy bit by bit, and how many seconds it took to go on. Other
    jobs are not touched, and both copies are deleted in the end. Takes a job's
    name, its spec as JSON, or the options of `training run`. Exits with 0 if all
    was survived, it went on from what it had saved, and nothing came out
    differently; with 1 if not.

    For example:

      shoal training drill hello --kill rank0@30
      shoal training drill hello --kill rank1@30 --sigterm node0@50 \\
          --slow rank1:3x --server-down 20s --json
      shoal training drill --accels 2 --kill rank1@30 -- train.py --lr 3e-4

    Parameters
    ----------
    entry
        A job's name or id, a file with its spec as JSON, or after `--` the script and its arguments.
    kill
        SIGKILL for a worker (rank1@30: after step 30), or a node with its agent (node0@30).
    sigterm
        SIGTERM, as when a machine is taken away: node0@50, or rank1@50.
    slow
        A worker that takes so many times as long: rank1:3x, rank1:3x@10-20.
    server_down
        The server is as if away for this job, so long: 20s (10 steps after all others), 20s@40.
    steps
        How many steps the copies take (default: 20 after the last fault).
    keep
        Keep the two copies, to look at.
    """
    from shoal.cli._drill_evidence import collect
    from shoal.cli._drill_faults import plan
    from shoal.cli._drill_report import check, report
    from shoal.core.drills import Plan

    planned = plan(kill or [], sigterm or [], slow or [], server_down or [], steps)
    with connect() as client:
        spec = _wanted(client, entry, flags or JobFlags(), planned)
        with _copies(client, spec, keep=keep) as run:
            out.say(f"An undisturbed copy, {planned.stop_at} steps …")
            reference = collect(client, run("undisturbed", Plan(planned.stop_at)).id)
            check(planned, reference)
            out.say(
                f"A copy with {plural(len(planned.faults), 'fault')}: {', '.join(f.text for f in planned.faults)} …"
            )
            drilled = collect(client, run("drilled", planned).id)
    found = report(planned, reference, drilled)
    out.show(found, lambda: show(found))
    return 0 if found["survived"] and found["resumed"] and found["exact"] is not False else 1


def show(found: dict[str, Any]) -> None:
    from shoal.cli._drill_report import describe

    if found["survived"] and found["resumed"]:
        out.styled(("It survived.", "bold green"))
    elif found["survived"]:
        out.styled(("It survived, but did NOT go on from where it was.", "bold yellow"))
    else:
        out.styled(("It did NOT survive.", "bold red"))
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
            out.line(f"After {row['fault']} it is not exact: {clean(describe(row['first_difference']))}")
    out.fields(
        [
            ("sample order", _order(found["sample_order"])),
            ("compared", ", ".join(map(clean, found["compared"]))),
            ("ended", _ended(found)),
        ]
    )
    for note in found["notes"]:
        out.line(clean(note))


def _wanted(client: Client, entry: Sequence[str], flags: JobFlags, planned: Plan) -> JobSpec:
    """Of the job that is named, or described as for `training run`; nothing is sent for a plan that does not fit."""
    from shoal.cli._drill_faults import check_targets

    after = session.after_dashes or 0
    before = entry[: len(entry) - after]
    if len(before) > 1:
        raise UsageError(
            f"Before `--` there is room for one job; what is {' '.join(map(repr, before[1:]))}?",
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
        raise UsageError("Say which job, or what to run.", hint=f"{out.prog} training drill JOB --kill rank0@30")
    elif replace(flags, time_limit=None) != JobFlags():
        raise UsageError(
            f"'{before[0]}' is a job that has its options already.",
            hint=f"To drill something else: {out.prog} training drill [OPTIONS] -- train.py",
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
    """A function that runs one copy to its end; whatever happens, none of them is left."""
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
        made[name] = None  # whoever is interrupted while it is sent does not know whether it is there
        made[name] = job = client.jobs.create(spec.model_copy(update=changes))
        made[name] = ended = client.jobs.wait(job.id)
        out.dim(f"  {ended.name} has ended: {ended.status}")
        return ended

    with terminable():
        try:
            yield run
        except KeyboardInterrupt:
            out.end_line()
            out.say("Interrupted: ending the copies …" if keep else "Interrupted: removing the copies …")
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
    return "not known" if value is None else "yes" if value else "NO"


def _order(order: dict[str, Any]) -> str:
    if order["difference"]:
        return clean(str(order["difference"]))
    return "each sample once, in order" if order["checked"] else "not known: no loader was prepared"


def _ended(found: dict[str, Any]) -> str:
    ended = found["ended"]
    reason = f": {clean(ended['reason'])}" if ended["reason"] and ended["status"] != "succeeded" else ""
    return f"{ended['status']} at step {ended['step']} of {found['steps']}{reason}"
