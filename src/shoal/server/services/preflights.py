"""Preflights: ordinary small jobs that try another's first steps on one slot, and leave nothing but their report."""

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
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.policy import Access
from shoal.server.services import jobs, preflight_reports
from shoal.server.services.devices import usable_kinds

logger = logging.getLogger(__name__)

_PREFIX = "preflight-"
_SPARE_S = 60
"""How much later than by itself it is ended from outside."""
_KEPT = timedelta(minutes=15)
"""For whoever asked for it to come back."""
_UNWANTED = "its preflight is no longer wanted"
_FORGOTTEN_S = 120.0
"""Nobody has asked how it goes: whoever started it was killed, or has closed the page."""
_LEAVES_S = 5.0
_NOT_TRIED = ("grow", "expected_s", "stall_timeout_s", "batch", "budget", "keep_last", "keep_best", "launcher")
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
_LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")


def advise(ctx: Context, spec: JobSpec) -> PreflightAdvice:
    """Whether such a job should have one first."""
    hours = ctx.settings.preflight_after_h
    if hours <= 0 or VARIABLE in spec.env or words(spec.entry) is None:
        return PreflightAdvice(wanted=False, why="")
    if spec.max_nodes > 1:
        return PreflightAdvice(wanted=True, why="it is to run on more than one node")
    if max(spec.time_limit_s or 0, spec.expected_s or 0) > hours * 3600:
        return PreflightAdvice(wanted=True, why=f"it may run for more than {hours:g} h")
    return PreflightAdvice(wanted=False, why="")


def _device(ctx: Context, spec: JobSpec) -> str:
    """The kind of slots the whole job will run on: a single slot of it might find room on another kind."""
    kinds = usable_kinds(ctx.engine.capacity(), spec, spec.exclude)
    return next(iter(kinds)) if spec.device == "auto" and len(kinds) == 1 else spec.device


def start(ctx: Context, access: Access, spec: JobSpec) -> PreflightView:
    """Of the job as it is asked for, which must be one that could be submitted."""
    script = words(spec.entry)
    if script is None:
        raise InvalidSpec(f"A preflight watches a Python script, and '{spec.entry[0]}' is none.")
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
        "env": {**spec.env, VARIABLE: json.dumps(asked)},
        "max_restarts": 0,
        "time_limit_s": round(ctx.settings.preflight_limit_s) + _SPARE_S,
    }
    usual = {name: JobSpec.model_fields[name].get_default() for name in _NOT_TRIED}
    view = jobs.submit(ctx, access, spec.model_copy(update=usual | changes))
    ctx.live.asked_for[view.id] = time.monotonic()
    return _view(view)


def submit(ctx: Context, access: Access, spec: JobSpec, preflight: str | None) -> JobView:
    """The job itself, with what its preflight has found."""
    if preflight is None:
        return jobs.submit(ctx, access, spec)
    report = get(ctx, access, preflight)
    view = jobs.submit(ctx, access, spec, preflight=report.id)
    drop(ctx, access, report.id)
    return view


def get(ctx: Context, access: Access, preflight: str) -> PreflightView:
    view = jobs.get(ctx, access, preflight)
    if not view.is_preflight:
        raise NotFound(f"Job '{view.name}' is no preflight.")
    ctx.live.asked_for[view.id] = time.monotonic()
    return _view(view)


def drop(ctx: Context, access: Access, preflight: str) -> None:
    """All of it: at once if it is over, else as soon as it is."""
    view = get(ctx, access, preflight)
    if not view.status.is_terminal:
        _end(ctx, view.id)
    ctx.live.leaving.add(view.id)
    deadline = time.monotonic() + _LEAVES_S
    while not _has_left(ctx, view.id) and time.monotonic() < deadline:
        time.sleep(0.05)
    see_off(ctx)


def see_off(ctx: Context) -> None:
    """Those that are no longer wanted, and can go by now."""
    gone = [job_id for job_id in list(ctx.live.leaving) if _has_left(ctx, job_id)]
    if _remove(ctx, gone):
        ctx.live.leaving.difference_update(gone)


def clear(ctx: Context) -> None:
    """Those nobody asks about or has come back for, and those a server that was ended had still to remove."""
    _end_forgotten(ctx)
    old, over = utcnow() - _KEPT, Job.ended_at.is_not(None)
    with ctx.db.read() as session:
        found = session.scalars(select(Job).where(Job.name.startswith(_PREFIX), over)).all()
        gone = [j.id for j in found if preflight_reports.is_one(j) and (_is_old(j, old) or j.stop_reason == _UNWANTED)]
    _remove(ctx, [job_id for job_id in gone if _has_left(ctx, job_id)])


def words(entry: list[str]) -> list[str] | None:
    """The script or module and its arguments, without what would start several of them; None if there is none."""
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


def _end_forgotten(ctx: Context) -> None:
    now = time.monotonic()
    with ctx.db.read() as session:
        found = session.scalars(select(Job).where(Job.name.startswith(_PREFIX), Job.ended_at.is_(None))).all()
        open_ones = [job.id for job in found if preflight_reports.is_one(job)]
    for job_id in open_ones:  # a server that has just begun counts from now
        if now - ctx.live.asked_for.setdefault(job_id, now) > _FORGOTTEN_S:
            _end(ctx, job_id)
            ctx.live.leaving.add(job_id)


def _end(ctx: Context, job_id: str) -> None:
    def work(session: Session) -> None:
        if (job := session.get(Job, job_id)) is not None:
            jobs.request_stop(session, job, _UNWANTED, JobState.STOPPED)

    ctx.db.write(work, essential=True)
    ctx.live.job_changed(job_id, schedule=True)


def _has_left(ctx: Context, job_id: str) -> bool:
    """It is over, and its agent has said its last word, or never will."""
    lost = select(Node.attempt_id).join(Attempt, Attempt.id == Node.attempt_id)
    with ctx.db.read() as session:
        job = session.get(Job, job_id)
        if job is None or job.ended_at is None:
            return job is None
        waits = lost.where(Attempt.job_id == job_id, Node.final.is_(False), Node.state == "exited")
        return session.scalar(waits.limit(1)) is None or _is_old(job, utcnow() - _KEPT)


def _remove(ctx: Context, job_ids: list[str]) -> bool:
    """Whether they are gone; a full disk is no reason for whoever asks to fail."""
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
