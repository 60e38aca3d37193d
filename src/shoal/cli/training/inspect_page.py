"""Page that `training inspect` prints for people."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from shoal.cli.shared.format import STATUS_STYLES, ago, clean, duration, plural, size, timestamp
from shoal.cli.shared.output import Column, out
from shoal.cli.shared.parse import device_words
from shoal.cli.training.follow import progress_text, run_time
from shoal.cli.training.spark import number
from shoal.core.durations import stall_timeout
from shoal.core.money import MILLION, money

if TYPE_CHECKING:
    from datetime import datetime

    from shoal.core.jobs import EventView, JobSpec, JobView

MOST_EVENTS = 30
MOST_METRICS = 12


def print_job(job: JobView) -> None:
    _header(job)
    _resources(job)
    _metrics(job)
    _attempts(job)
    _bugs(job)
    _preflight(job)
    _events(job)
    _next_commands(job)


def _header(job: JobView) -> None:
    state = f"{job.status}{' (stopping)' if job.stop_requested and not job.status.is_terminal else ''}"
    out.styled((job.name, "bold"), "  ", (state, STATUS_STYLES.get(job.status, "default")))
    out.line()
    out.fields(
        [
            ("Id", job.id),
            ("Reason", job.reason if job.status.is_terminal else None),
            ("Waiting", job.waiting),
            ("After", _chain(job, is_next=False)),
            ("Then", _chain(job, is_next=True)),
            ("Stalled", job.stalled),
            *(("Warning", clean(text)) for text in job.warnings),
            ("Progress", progress_text(job.progress, with_bar=out.is_terminal) if job.progress else None),
            ("Ran for" if job.ended_at else "Running for", run_time(job)),
            ("Used", _used(job)),
            ("Exit code", job.exit_code),
            ("Workspace", job.workspace),
            ("Submitted", f"{_when(job.created_at)} by {clean(job.created_by)}"),
            ("Started", _when(job.started_at)),
            ("Ended", _when(job.ended_at)),
        ]
    )


def _used(job: JobView) -> str | None:
    if not job.slot_seconds:
        return None
    costs = [money(round(cost * MILLION), currency) for currency, cost in job.costs.items()]
    return ", ".join([f"{job.slot_seconds / 3600:.4f} slot-hours", *costs])


def _resources(job: JobView) -> None:
    spec = job.spec
    asked = str(spec.min_nodes) if spec.min_nodes == spec.max_nodes else f"{spec.min_nodes} to {spec.max_nodes}"
    out.heading("Job")
    out.fields(
        [
            ("Command", shlex.join(spec.entry)),
            ("Source", _source(job.source)),
            (
                "Resources",
                f"{asked} node{'' if asked == '1' else 's'} × {plural(spec.accels, 'accel')}{', growing' if spec.grow else ''}"
                f"{device_words(spec)}",
            ),
            ("Launcher", spec.launcher),
            ("Without GPU", "trains on the CPU (--allow-cpu)" if spec.allow_cpu else None),
            ("Devices", "each worker sees its own only" if spec.one_device_per_worker else None),
            ("Cluster", " ".join(f"{k}={v}" for k, v in spec.engine_options.items()) or None),
            ("Torch", "may be replaced by requirements.txt" if spec.allow_torch_change else None),
            ("Datasets", ", ".join(f"/input/{d}" for d in spec.datasets)),
            ("Mounts", ", ".join(spec.mounts)),
            ("Checkpoint", spec.checkpoint),
            ("Env", " ".join(f"{k}={shlex.quote(v)}" for k, v in spec.env.items())),
            ("Secrets", ", ".join(f"{k} from '{v}'" for k, v in spec.secrets.items())),
            ("Priority", spec.priority or None),
            ("Restarts", f"up to {spec.max_restarts}"),
            ("Time limit", duration(spec.time_limit_s) if spec.time_limit_s else None),
            ("Limits", _limits(spec)),
            ("When it hangs", None if spec.on_stall == "restart" else spec.on_stall),
            ("Stall timeout", None if spec.stall_timeout_s is None else stall_timeout(spec.stall_timeout_s)),
            ("Grace period", None if spec.grace_s is None else duration(spec.grace_s)),
            ("Budget", spec.budget),
        ],
        indent="  ",
    )


def _metrics(job: JobView) -> None:
    if not job.metrics:
        return
    out.heading("Last metrics")
    out.fields([(clean(name), number(value)) for name, value in list(job.metrics.items())[:MOST_METRICS]], indent="  ")
    if len(job.metrics) > MOST_METRICS:
        out.styled((f"  … and more: {out.prog} training metrics {job.name}", "dim"))


def _limits(spec: JobSpec) -> str | None:
    names = ("memory", "cpus", "disk", "shm")
    return ", ".join(f"{name} {value}" for name in names if (value := getattr(spec, name))) or None


def _attempts(job: JobView) -> None:
    if not job.attempt_list:
        return
    out.heading("Attempts and nodes")
    rows = [(attempt, node) for attempt in job.attempt_list for node in attempt.nodes]
    columns = [
        Column("ATTEMPT", lambda r: r[0].number, is_right=True),
        Column("NODE", lambda r: r[1].index, is_right=True),
        Column("MACHINE", lambda r: r[1].machine, rank=1),
        Column("SLOTS", lambda r: ",".join(map(str, r[1].slots)), rank=3),
        Column("STATE", lambda r: r[1].state, is_status=True),
        Column("EXIT", lambda r: r[1].exit_code, is_right=True, rank=2),
        Column("PATHS", lambda r: r[1].paths, rank=5),
        Column("SANDBOX", lambda r: r[1].sandbox, rank=4),
        Column("REASON", lambda r: r[1].reason or r[0].reason, is_text=True),
    ]
    out.table(rows, columns)


def _bugs(job: JobView) -> None:
    if not job.bugs:
        return
    out.heading("Failed steps")
    columns = [
        Column("STEP", lambda b: b.step, is_right=True),
        Column("RANK", lambda b: b.rank, is_right=True),
        Column("ATTEMPT", lambda b: b.attempt, is_right=True),
        Column("WHERE", lambda b: b.where, is_text=True, rank=1),
        Column("CAPSULE", lambda b: size(b.size) if b.ready else "uploading", rank=3),
        Column("ERROR", lambda b: f"{b.error}: {b.message}", is_text=True),
    ]
    out.table(job.bugs, columns)
    out.styled((f"  to run one again: {out.prog} training replay {job.name}", "dim"))


def _preflight(job: JobView) -> None:
    if job.preflight is None or not job.preflight.findings:
        return
    out.heading("Findings of the preflight")
    columns = [
        Column("SEVERITY", lambda f: f.severity),
        Column("WHERE", lambda f: f"{f.path}:{f.line}" if f.path else None, is_text=True, rank=1),
        Column("RULE", lambda f: f.rule, rank=2),
        Column("WHAT", lambda f: f.message, is_text=True),
    ]
    out.table(job.preflight.findings, columns)


def _events(job: JobView) -> None:
    if not job.events:
        return
    out.heading("Events")
    shown = job.events[-MOST_EVENTS:]
    if len(job.events) > len(shown):
        out.styled((f"  … {plural(len(job.events) - len(shown), 'earlier event')} (see --json)", "dim"))
    start = job.created_at
    for event in shown:
        out.styled((f"  {_clock(event, start)}  ", "dim"), clean(event.message))


def _next_commands(job: JobView) -> None:
    if not out.is_terminal:
        return
    commands = [("training logs", " -f" if not job.status.is_terminal else "", "print its output")]
    if job.status.is_terminal:
        commands.append(("training delete", "", "delete it"))
    else:
        commands.append(("training stop", "", "stop it"))
    out.line()
    for command, options, what in commands:
        line = f"{out.prog} {command} {job.name}{options}"
        out.styled((f"{line:<48}", "cyan"), (f" {what}", "dim"))


def _source(source: dict[str, object]) -> str:
    """Return the origin of the code: `git https://… at 1a2b3c`, `folder /home/me/project`, or its id."""
    known = {k: clean(str(v)) for k, v in source.items() if v}
    where = known.get("url") or known.get("path") or known.get("name") or known.get("id", "")
    revision = f" at {known['revision']}" if "revision" in known else ""
    return f"{known.get('kind', '')} {where}{revision}".strip()


def _when(moment: datetime | None) -> str | None:
    if moment is None:
        return None
    return f"{timestamp(moment)} ({ago(moment)})" if out.is_terminal else timestamp(moment)


def _clock(event: EventView, start: datetime) -> str:
    if not out.is_terminal:
        return timestamp(event.at)
    return f"{'+' + duration(max(0.0, (event.at - start).total_seconds())):>10}"


def _chain(job: JobView, *, is_next: bool) -> str | None:
    """Return the jobs before or after this one with their states, or None."""
    names = [f"{one.job} ({one.status or 'deleted'})" for one in job.chain if one.is_next is is_next]
    return ", ".join(names) or None
