"""Jobs: submit, show, stop, resume, delete. Every lookup goes through an Access and so stays within one workspace."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from sqlalchemy import delete as sql_delete
from sqlalchemy import or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shoal.core.audit import AuditAction
from shoal.core.entries import check_entry
from shoal.core.errors import Forbidden, InvalidSpec, NameTaken, NotAllowedNow, NotFound
from shoal.core.folder_mounts import check_mounts
from shoal.core.ids import new_id
from shoal.core.jobs import JobSpec, JobSummary, JobView
from shoal.core.names import did_you_mean
from shoal.core.preflight import VARIABLE
from shoal.core.run_params import params_of
from shoal.core.runs import RunKind
from shoal.core.schema import utcnow
from shoal.core.states import JobState
from shoal.server import lookup
from shoal.server.audit.record import record_action
from shoal.server.billing import budgets
from shoal.server.context import Context
from shoal.server.engines import queue as engine_queue
from shoal.server.jobs import after, devices, imported_runs, reuse, stacks, views
from shoal.server.jobs.events import move, record_event
from shoal.server.models.jobs import Attempt, Job
from shoal.server.models.secrets import Secret
from shoal.server.models.sources import Source
from shoal.server.people.secrets import open_secrets
from shoal.server.policy import Access
from shoal.server.preflight import reports as preflight_reports
from shoal.server.queue import quotas
from shoal.store.manifest import dump_manifest


class Checked(NamedTuple):
    """Job that may be submitted: its code and its mounts."""

    source: Source
    inputs: list[dict[str, str]]


def submit(
    ctx: Context,
    access: Access,
    spec: JobSpec,
    *,
    preflight: str | None = None,
    replace: bool = False,
    reuse_same: bool = False,
) -> JobView:
    """Queue a job; raise if it can never run. Returns once the job is durable.

    `preflight`: id of a preflight whose report the job gets. `replace`: delete the finished job of the same name.
    `reuse_same`: return a job that has done the same before, if there is one, and queue nothing.
    """
    checked = check(ctx, access, spec)
    if reuse_same:
        with ctx.db.read() as session:
            if (same := reuse.find(ctx, session, access, spec, checked.source.manifest_id, checked.inputs)) is not None:
                return views.job_view(session, same, access.workspace, None)
    job_id = new_id("job")
    gone: tuple[list[str], list[str]] = ([], [])

    def work(session: Session) -> JobView:
        nonlocal gone
        if replace:
            gone = _remove_same_name(session, access, spec.name)
        job = Job(**row(access.workspace_id, access.principal.email, spec.model_dump(mode="json"), checked), id=job_id)
        session.add(job)
        try:
            session.flush()
        except IntegrityError:
            raise NameTaken(
                f"There is already a job '{spec.name}' in workspace '{access.workspace}'.",
                hint=f"Choose another name, or delete the older job: shoal training delete {spec.name}",
            ) from None
        preflight_reports.carry_over(session, access, preflight, job)
        record_event(session, job, "queued", f"submitted by {access.principal.email}")
        record_action(session, AuditAction.JOB_CREATE, job.name, job.id, workspace=access)
        return views.job_view(session, job, access.workspace, None)

    view = ctx.db.write(work)
    clean_up(ctx, *gone)
    ctx.live.job_changed(job_id, schedule=True)
    return view


def check(ctx: Context, access: Access, spec: JobSpec) -> Checked:
    """Raise for every mistake that can be found before the job runs."""
    devices.refuse_device_variables(spec)
    devices.refuse_unknown_options(spec)
    refuse_mounts(ctx, spec)
    refuse_impossible(ctx, spec)
    budgets.refuse_unpriced(ctx, spec)
    with ctx.db.read() as session:
        quotas.refuse_larger(session, access, spec)
        after.resolve(session, access, spec)
        source = lookup.source(session, access, spec.source_id)
        _check_secrets(session, access, spec)
        mounts = inputs(session, access, spec)
    open_secrets(ctx, access.workspace_id, spec.secrets)  # a secret that cannot be decrypted would fail the job later
    check_entry(spec.entry[0].removeprefix("./"), [f.path for f in ctx.store.get_manifest(source.manifest_id).files])
    return Checked(source, mounts)


def inputs(session: Session, access: Access, spec: JobSpec) -> list[dict[str, str]]:
    """Return the mounts of a job's datasets and checkpoint, fixed to their current versions."""
    mounts = []
    for reference in spec.datasets:
        dataset = lookup.dataset(session, access, reference)
        mounts.append(
            {"path": f"/input/{dataset.name}", "name": dataset.name, "manifest_id": dataset.manifest_id or ""}
        )
    if len({i["path"] for i in mounts}) < len(mounts):
        raise InvalidSpec("The same dataset is given twice.")
    if spec.checkpoint:
        checkpoint = lookup.checkpoint(session, access, spec.checkpoint)
        mounts.append({"path": "/input-checkpoint", "name": checkpoint.name, "manifest_id": checkpoint.manifest_id})
    return mounts


def row(workspace_id: str, created_by: str, spec: dict[str, Any], checked: Checked) -> dict[str, Any]:
    """Return the database row of a queued job, without its id."""
    return {
        "workspace_id": workspace_id,
        "name": spec["name"],
        "spec": spec,
        "source_id": checked.source.id,
        "inputs": checked.inputs,
        "created_by": created_by,
        "state": JobState.QUEUED.value,
        "priority": spec["priority"],
        "created_at": utcnow(),
        "kind": kind_of(spec["env"]),
        "params": params_of(spec["entry"]),
    }


def kind_of(env: Mapping[str, str]) -> RunKind:
    """Return the kind of a job by the variables that Shoal sets for it. Leases are marked by their own service."""
    return "preflight" if VARIABLE in env else "trial" if "SHOAL_SWEEP" in env else "job"


def refuse_mounts(ctx: Context, spec: JobSpec) -> None:
    """Raise for mounts that a shared server does not permit: agents would open the machine's files and networks for a job."""
    for mount in [] if ctx.private else check_mounts(spec.mounts):
        if mount.bucket is None or mount.bucket.endpoint is not None or ctx.settings.job_egress != "open":
            which = "only buckets of Amazon S3" if ctx.settings.job_egress == "open" else "nothing (job_egress)"
            raise Forbidden(
                f"--mount {mount.source}: on this shared server, jobs may mount {which}.",
                hint="Import the data once: shoal dataset import NAME URL, then --dataset NAME",
            )


def refuse_impossible(ctx: Context, spec: JobSpec) -> None:
    """Raise unless the pool could run this job if all of it were free."""
    pool = ctx.engine.capacity()
    quotas.check_machines(pool, [*spec.exclude, *spec.prefer])
    devices.refuse_impossible(pool, spec, exclude=spec.exclude, private=ctx.private)


def list_jobs(
    ctx: Context,
    access: Access,
    *,
    status: JobState | None,
    search: str | None,
    limit: int,
    before: str | None,
    kind: RunKind | None = None,
) -> list[JobSummary]:
    """List jobs, newest first; of one kind, or of all kinds except leases."""
    query = select(Job).where(Job.workspace_id == access.workspace_id).order_by(Job.id.desc()).limit(limit)
    query = query.where(Job.kind != "lease" if kind is None else Job.kind == kind)
    if status is not None:
        query = query.where(Job.state == status.value)
    if search:
        query = query.where(or_(Job.name.contains(search, autoescape=True), Job.id == search))
    if before:
        query = query.where(Job.id < before)
    with ctx.db.read() as session:
        return [views.job_summary(session, job) for job in session.scalars(query)]


def get(ctx: Context, access: Access, name_or_id: str) -> JobView:
    with ctx.db.read() as session:
        job = lookup.job(session, access, name_or_id)
        waiting = engine_queue.why(ctx, session, job) or ctx.live.waiting.get(job.id)
        view = views.job_view(session, job, access.workspace, waiting)
        still = stacks.stalled(ctx, session, job)
        return view.model_copy(update={"stalled": still.message}) if still else view


def source_manifest(ctx: Context, access: Access, name_or_id: str) -> bytes:
    """Return the manifest of a job's code as it was submitted."""
    with ctx.db.read() as session:
        source = session.get_one(Source, lookup.job(session, access, name_or_id).source_id)
    return dump_manifest(ctx.store.get_manifest(source.manifest_id))


def stop(ctx: Context, access: Access, name_or_id: str) -> JobView:
    """Stop a job. Idempotent: jobs that have ended are left as they are."""

    def work(session: Session) -> str:
        job = lookup.job(session, access, name_or_id)
        if not JobState(job.state).is_terminal:
            imported_runs.refuse(job, "stopped")
        if request_stop(session, job, f"stopped by {access.principal.email}", JobState.STOPPED):
            record_action(session, AuditAction.JOB_STOP, job.name, job.id, workspace=access)
        return job.id

    job_id = ctx.db.write(work, essential=True)
    ctx.live.job_changed(job_id, schedule=True)
    return get(ctx, access, job_id)


def request_stop(session: Session, job: Job, reason: str, as_state: JobState) -> bool:
    """Request that a job ends in state `as_state`: at once if it is queued, else when its agents have stopped it.

    A preemption that is under way becomes a stop; other requests, and jobs that have ended, are left as they are: then it
    returns False.
    """
    making_way = job.stop_state == JobState.QUEUED
    if JobState(job.state).is_terminal or (job.stop_requested_at is not None and not making_way):
        return False
    job.stop_requested_at, job.stop_reason, job.stop_state = utcnow(), reason, as_state.value
    if job.state == JobState.QUEUED:
        job.reason = reason
        move(session, job, as_state, reason)
    else:
        record_event(session, job, "stop_requested", reason)
    return True


def request_preempt(session: Session, job: Job, reason: str) -> bool:
    """Request that a running job saves, ends and is queued again, without using up a restart; return whether it will."""
    if job.state not in (JobState.STARTING, JobState.RUNNING) or job.stop_requested_at is not None:
        return False
    job.stop_requested_at, job.stop_reason, job.stop_state = utcnow(), reason, JobState.QUEUED.value
    record_event(session, job, "preempted", reason)
    return True


def resume(ctx: Context, access: Access, name_or_id: str) -> JobView:
    """Continue a stopped or failed job, from its newest good checkpoint if it has one."""

    def work(session: Session) -> str:
        job = lookup.job(session, access, name_or_id)
        if job.state not in (JobState.STOPPED, JobState.FAILED):
            raise NotAllowedNow(f"Job '{job.name}' is {job.state}; only stopped and failed jobs can be resumed.")
        imported_runs.refuse(job, "resumed")
        reopen(session, job, f"resumed by {access.principal.email}")
        record_action(session, AuditAction.JOB_RESUME, job.name, job.id, workspace=access)
        return job.id

    job_id = ctx.db.write(work)
    ctx.live.job_changed(job_id, schedule=True)
    return get(ctx, access, job_id)


def reopen(session: Session, job: Job, text: str) -> None:
    """Queue a stopped or failed job again, with all its restarts."""
    job.stop_requested_at = job.stop_reason = job.stop_state = job.exit_code = job.reason = None
    job.restarts_used, job.started_at = 0, None
    move(session, job, JobState.QUEUED, text, data={"after": job.attempts})


def delete(ctx: Context, access: Access, name_or_id: str) -> None:
    """Delete a finished job with all its data."""

    gone = ctx.db.write(
        lambda session: _remove_finished(session, access, lookup.job(session, access, name_or_id)), essential=True
    )
    clean_up(ctx, *gone)


def _remove_finished(session: Session, access: Access, job: Job) -> tuple[list[str], list[str]]:
    """Delete the rows of a finished job; return its id and its attempts, for `clean_up`."""
    if not JobState(job.state).is_terminal and job.run_id is None:
        raise NotAllowedNow(
            f"Job '{job.name}' is {job.state}; only finished jobs can be deleted.",
            hint=f"shoal training stop {job.name}",
        )
    record_action(session, AuditAction.JOB_DELETE, job.name, job.id, workspace=access)
    return [job.id], remove(session, [job.id])


def _remove_same_name(session: Session, access: Access, name: str) -> tuple[list[str], list[str]]:
    same = select(Job).where(Job.workspace_id == access.workspace_id, Job.name == name)
    job = session.scalar(same)
    return ([], []) if job is None else _remove_finished(session, access, job)


def remove(session: Session, job_ids: Collection[str]) -> list[str]:
    """Delete the rows of jobs in any state; return their attempts, for `clean_up` after the commit."""
    attempts = list(session.scalars(select(Attempt.id).where(Attempt.job_id.in_(job_ids))))
    session.execute(sql_delete(Job).where(Job.id.in_(job_ids)))
    return attempts


def clean_up(ctx: Context, job_ids: Collection[str], attempts: Collection[str]) -> None:
    """Notify followers of deleted jobs, and delete the files of their attempts."""
    for job_id in job_ids:
        ctx.live.job_changed(job_id)
    for attempt_id in attempts:
        ctx.engine.clean(attempt_id)


def set_progress(ctx: Context, job_id: str, progress: dict[str, object]) -> None:
    ctx.db.write(lambda session: session.execute(update(Job).where(Job.id == job_id).values(progress=progress)))
    ctx.live.job_changed(job_id)


def _check_secrets(session: Session, access: Access, spec: JobSpec) -> None:
    known = set(session.scalars(select(Secret.name).where(Secret.workspace_id == access.workspace_id)))
    for name in spec.secrets.values():
        if name not in known:
            raise NotFound(
                f"There is no secret '{name}' in workspace '{access.workspace}'.{did_you_mean(name, known)}",
                hint=f"shoal secret create {name}",
            )
