"""Preflights: ordinary one-slot jobs that run another job's first steps; only their report is kept."""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.errors import InvalidSpec, NotFound, ShoalError
from shoal.core.jobs import JobSpec, JobView
from shoal.core.preflight import VARIABLE, PreflightAdvice, PreflightView
from shoal.core.schema import utcnow
from shoal.core.states import JobState
from shoal.server.context import Context
from shoal.server.jobs import service as jobs
from shoal.server.jobs.devices import usable_kinds, usable_models
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.policy import Access
from shoal.server.preflight import reports as preflight_reports

logger = logging.getLogger(__name__)

_PREFIX = "preflight-"
_SPARE_S = 60
"""Seconds after the preflight's own time limit when the scheduler ends it."""
_KEPT_FOR = timedelta(minutes=15)
"""Time a finished preflight is kept, so that its report can still be fetched."""
_UNWANTED = "its preflight is no longer wanted"
_ABANDONED_S = 120.0
"""Seconds without a status request after which a preflight is ended: its client was killed or the page was closed."""
_REMOVAL_WAIT_S = 5.0
_NOT_COPIED = (
    "after",
    "grow",
    "expected_s",
    "stall_timeout_s",
    "on_stall",
    "batch",
    "budget",
    "keep_last",
    "keep_best",
    "launcher",
)
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
_LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")


def advise(ctx: Context, spec: JobSpec) -> PreflightAdvice:
    """Return whether such a job should have a preflight first, and why."""
    hours = ctx.settings.preflight_after_h
    if hours <= 0 or VARIABLE in spec.env or words(spec.entry) is None:
        return PreflightAdvice(wanted=False, why="")
    if spec.max_nodes > 1:
        return PreflightAdvice(wanted=True, why="it is to run on more than one node")
    if max(spec.time_limit_s or 0, spec.expected_s or 0) > hours * 3600:
        return PreflightAdvice(wanted=True, why=f"it may run for more than {hours:g} h")
    return PreflightAdvice(wanted=False, why="")


def _device(ctx: Context, spec: JobSpec) -> str:
    """Return the kind of device the whole job will run on. A single slot alone might be placed on another kind."""
    kinds = usable_kinds(ctx.engine.capacity(), spec, spec.exclude)
    return next(iter(kinds)) if spec.device == "auto" and len(kinds) == 1 else spec.device


def _model(ctx: Context, spec: JobSpec) -> str | None:
    """Return the model of GPU the whole job will run on, if there is only one: a single slot alone might be a MIG slice."""
    models = {model for _, model in usable_models(ctx.engine.capacity(), spec, spec.exclude)}
    return spec.gpu or (models.pop() or None if len(models) == 1 else None)


def start(ctx: Context, access: Access, spec: JobSpec) -> PreflightView:
    """Submit a preflight of a job. Raises if the job itself could not be submitted."""
    script = words(spec.entry)
    if script is None:
        raise InvalidSpec(f"A preflight needs a Python script; '{spec.entry[0]}' is not one.")
    jobs.check(ctx, access, spec)
    asked = {
        "nodes": spec.max_nodes,
        "accels": spec.accels,
        "keep_last": spec.keep_last,
        "limit_s": ctx.settings.preflight_limit_s,
    }
    changes = {
        "name": f"{_PREFIX}{spec.name[:40]}-{secrets.token_hex(3)}",
        "entry": script,
        "min_nodes": 1,
        "max_nodes": 1,
        "accels": 1,
        "device": _device(ctx, spec),
        "gpu": _model(ctx, spec),
        "env": {**spec.env, VARIABLE: json.dumps(asked)},
        "max_restarts": 0,
        "time_limit_s": round(ctx.settings.preflight_limit_s) + _SPARE_S,
    }
    usual = {name: JobSpec.model_fields[name].get_default() for name in _NOT_COPIED}
    view = jobs.submit(ctx, access, spec.model_copy(update=usual | changes))
    ctx.live.asked_for[view.id] = time.monotonic()
    return _view(view)


def submit(
    ctx: Context,
    access: Access,
    spec: JobSpec,
    preflight: str | None,
    *,
    replace: bool = False,
    reuse_same: bool = False,
) -> JobView:
    """Submit a job, with the report of its preflight if one is given; that preflight is then removed."""
    if preflight is None:
        return jobs.submit(ctx, access, spec, replace=replace, reuse_same=reuse_same)
    report = get(ctx, access, preflight)
    view = jobs.submit(ctx, access, spec, preflight=report.id, replace=replace, reuse_same=reuse_same)
    drop(ctx, access, report.id)
    return view


def get(ctx: Context, access: Access, preflight: str) -> PreflightView:
    view = jobs.get(ctx, access, preflight)
    if not view.is_preflight:
        raise NotFound(f"Job '{view.name}' is not a preflight.")
    ctx.live.asked_for[view.id] = time.monotonic()
    return _view(view)


def drop(ctx: Context, access: Access, preflight: str) -> None:
    """Stop a preflight if it runs, and remove it; waits a few seconds, then leaves the removal to `see_off`."""
    view = get(ctx, access, preflight)
    if not view.status.is_terminal:
        _end(ctx, view.id)
    ctx.live.leaving.add(view.id)
    deadline = time.monotonic() + _REMOVAL_WAIT_S
    while not _is_removable(ctx, view.id) and time.monotonic() < deadline:
        time.sleep(0.05)
    see_off(ctx)


def see_off(ctx: Context) -> None:
    """Remove the dropped preflights whose agents have reported for the last time."""
    gone = [job_id for job_id in list(ctx.live.leaving) if _is_removable(ctx, job_id)]
    if _remove(ctx, gone):
        ctx.live.leaving.difference_update(gone)


def clear(ctx: Context) -> None:
    """End abandoned preflights; remove old ones, and those whose removal a server crash interrupted."""
    _end_abandoned(ctx)
    old, over = utcnow() - _KEPT_FOR, Job.ended_at.is_not(None)
    with ctx.db.read() as session:
        found = session.scalars(select(Job).where(Job.name.startswith(_PREFIX), over)).all()
        gone = [j.id for j in found if preflight_reports.is_one(j) and (_is_old(j, old) or j.stop_reason == _UNWANTED)]
    _remove(ctx, [job_id for job_id in gone if _is_removable(ctx, job_id)])


def words(entry: list[str]) -> list[str] | None:
    """Return the script or module and its arguments without a launcher such as torchrun; None if there is no Python script."""
    head = entry[0]
    module = entry.index("-m") if "-m" in entry else len(entry)
    script = next((i for i, word in enumerate(entry) if word.endswith(".py")), len(entry))
    runs_python = re.fullmatch(r"python[\d.]*", head) is not None or head in _LAUNCHERS or head == "-m"
    if head.endswith(".py"):
        return entry
    if runs_python and module < script and entry[module + 1 : module + 2] not in [[m] for m in _LAUNCHER_MODULES]:
        return entry[module:]
    return entry[script:] if runs_python and script < len(entry) else None


def _view(job: JobView) -> PreflightView:
    over = job.status.is_terminal
    return PreflightView(
        id=job.id,
        name=job.name,
        status=job.status,
        waiting=job.waiting,
        reason=job.reason,
        report=job.preflight if over else None,
        passed=job.preflight.passed if over and job.preflight else None,
    )


def _is_old(job: Job, moment: datetime) -> bool:
    return job.ended_at is not None and job.ended_at < moment


def _end_abandoned(ctx: Context) -> None:
    now = time.monotonic()
    with ctx.db.read() as session:
        found = session.scalars(select(Job).where(Job.name.startswith(_PREFIX), Job.ended_at.is_(None))).all()
        open_ones = [job.id for job in found if preflight_reports.is_one(job)]
    for job_id in open_ones:  # after a server restart, counting starts now
        if now - ctx.live.asked_for.setdefault(job_id, now) > _ABANDONED_S:
            _end(ctx, job_id)
            ctx.live.leaving.add(job_id)


def _end(ctx: Context, job_id: str) -> None:
    def work(session: Session) -> None:
        if (job := session.get(Job, job_id)) is not None:
            jobs.request_stop(session, job, _UNWANTED, JobState.STOPPED)

    ctx.db.write(work, essential=True)
    ctx.live.job_changed(job_id, schedule=True)


def _is_removable(ctx: Context, job_id: str) -> bool:
    """Check whether a job is over and its agents have reported for the last time, or had `_KEPT_FOR` to do so."""
    lost = select(Node.attempt_id).join(Attempt, Attempt.id == Node.attempt_id)
    with ctx.db.read() as session:
        job = session.get(Job, job_id)
        if job is None or job.ended_at is None:
            return job is None
        waits = lost.where(Attempt.job_id == job_id, Node.final.is_(False), Node.state == "exited")
        return session.scalar(waits.limit(1)) is None or _is_old(job, utcnow() - _KEPT_FOR)


def _remove(ctx: Context, job_ids: list[str]) -> bool:
    """Remove jobs; return False, instead of raising, if the database cannot be written now."""
    if not job_ids:
        return True
    try:
        attempts = ctx.db.write(lambda session: jobs.remove(session, job_ids), essential=True)
    except ShoalError as error:
        logger.warning("preflights could not be removed: %s", error)
        return False
    jobs.clean_up(ctx, job_ids, attempts)
    for job_id in job_ids:
        ctx.live.asked_for.pop(job_id, None)
    return True
