"""Jobs: submit, look at, stop, delete. Everything is found through an Access, so within one workspace."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from sqlalchemy import delete as sql_delete
from sqlalchemy import or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shoal.core.errors import EntryNotFound, InvalidSpec, NameTaken, NotAllowedNow, NotFound
from shoal.core.ids import new_id
from shoal.core.jobs import JobSpec, JobSummary, JobView
from shoal.core.names import did_you_mean
from shoal.core.schema import utcnow
from shoal.core.states import JobState
from shoal.server.context import Context
from shoal.server.models.artifacts import Source
from shoal.server.models.jobs import Attempt, Job
from shoal.server.models.leases import Lease
from shoal.server.models.people import Secret
from shoal.server.policy import Access
from shoal.server.services import budgets, devices, engine_queue, find, preflight_reports, quotas, runs, stacks, views
from shoal.server.services.events import move, tell
from shoal.server.services.secrets import open_secrets
from shoal.store.manifest import dump_manifest


class Checked(NamedTuple):
    """A job that may be submitted: its code, and what to mount."""

    source: Source
    inputs: list[dict[str, str]]


def submit(ctx: Context, access: Access, spec: JobSpec, *, preflight: str | None = None) -> JobView:
    """Refuse what can never run; acknowledge the rest once it is durable. `preflight`: the one whose report it gets."""
    checked = check(ctx, access, spec)
    job_id = new_id("job")

    def work(session: Session) -> JobView:
        job = Job(**row(access.workspace_id, access.principal.email, spec.model_dump(mode="json"), checked), id=job_id)
        session.add(job)
        try:
            session.flush()
        except IntegrityError:
            raise NameTaken(
                f"There is already a job '{spec.name}' in workspace '{access.workspace}'.",
                hint=f"choose another name, or: shoal training delete {spec.name}",
            ) from None
        preflight_reports.carry_over(session, access, preflight, job)
        tell(session, job, "queued", f"submitted by {access.principal.email}")
        return views.job_view(session, job, access.workspace, None)

    view = ctx.db.write(work)
    ctx.live.job_changed(job_id, schedule=True)
    return view


def check(ctx: Context, access: Access, spec: JobSpec) -> Checked:
    """All that can be known to be wrong before it runs."""
    refuse_impossible(ctx, spec)
    budgets.refuse_unpriced(ctx, spec)
    with ctx.db.read() as session:
        quotas.refuse_larger(session, access, spec)
        source = find.source(session, access, spec.source_id)
        _check_secrets(session, access, spec)
        mounts = inputs(session, access, spec)
    open_secrets(ctx, access.workspace_id, spec.secrets)  # one that cannot be read would only fail the job later
    check_entry(spec.entry, [f.path for f in ctx.store.get_manifest(source.manifest_id).files])
    return Checked(source, mounts)


def inputs(session: Session, access: Access, spec: JobSpec) -> list[dict[str, str]]:
    """Datasets and checkpoint as they are now: a version pushed later does not change a job already submitted."""
    mounts = []
    for reference in spec.datasets:
        dataset = find.dataset(session, access, reference)
        mounts.append(
            {"path": f"/input/{dataset.name}", "name": dataset.name, "manifest_id": dataset.manifest_id or ""}
        )
    if len({i["path"] for i in mounts}) < len(mounts):
        raise InvalidSpec("The same dataset is given twice.")
    if spec.checkpoint:
        checkpoint = find.checkpoint(session, access, spec.checkpoint)
        mounts.append({"path": "/input-checkpoint", "name": checkpoint.name, "manifest_id": checkpoint.manifest_id})
    return mounts


def row(workspace_id: str, created_by: str, spec: dict[str, Any], checked: Checked) -> dict[str, Any]:
    """Of a job that waits, but for its id."""
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
    }


def refuse_impossible(ctx: Context, spec: JobSpec) -> None:
    """Raise unless the pool, all of it free, could run this."""
    pool = ctx.engine.capacity()
    quotas.check_machines(pool, [*spec.exclude, *spec.prefer])
    devices.refuse_impossible(pool, spec, exclude=spec.exclude, private=ctx.private)


def check_entry(entry: list[str], paths: list[str]) -> None:
    """The script must be in the source; launchers (`python`, `-m`, `torchrun`, …) are taken at their word."""
    script = entry[0].removeprefix("./")
    if not script.endswith((".py", ".sh")) or script in paths:
        return
    same_name = [p for p in paths if p.rsplit("/", 1)[-1] == script.rsplit("/", 1)[-1]]
    scripts = [p for p in paths if p.endswith((".py", ".sh"))]
    guess = f" Did you mean {same_name[0]!r}?" if same_name else did_you_mean(script, scripts)
    if not guess and scripts:
        shown = ", ".join(scripts[:5]) + (", …" if len(scripts) > 5 else "")
        guess = f" It holds: {shown}."
    raise EntryNotFound(f"There is no '{script}' in the source.{guess}")


def list_jobs(
    ctx: Context, access: Access, *, status: JobState | None, search: str | None, limit: int, before: str | None
) -> list[JobSummary]:
    query = select(Job).where(Job.workspace_id == access.workspace_id).order_by(Job.id.desc()).limit(limit)
    query = query.where(Job.id.not_in(select(Lease.job_id)))
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
        job = find.job(session, access, name_or_id)
        waiting = engine_queue.why(ctx, session, job) or ctx.live.waiting.get(job.id)
        view = views.job_view(session, job, access.workspace, waiting)
        still = stacks.stalled(ctx, session, job)
        return view.model_copy(update={"stalled": still.message}) if still else view


def source_manifest(ctx: Context, access: Access, name_or_id: str) -> bytes:
    """Of its code as it was submitted."""
    with ctx.db.read() as session:
        source = session.get_one(Source, find.job(session, access, name_or_id).source_id)
    return dump_manifest(ctx.store.get_manifest(source.manifest_id))


def stop(ctx: Context, access: Access, name_or_id: str) -> JobView:
    """Idempotent: a stopped job stays stopped, a finished one stays as it ended."""

    def work(session: Session) -> str:
        job = find.job(session, access, name_or_id)
        if not JobState(job.state).is_terminal:
            runs.refuse(job, "stopped")
        request_stop(session, job, f"stopped by {access.principal.email}", JobState.STOPPED)
        return job.id

    job_id = ctx.db.write(work, essential=True)
    ctx.live.job_changed(job_id, schedule=True)
    return get(ctx, access, job_id)


def request_stop(session: Session, job: Job, reason: str, as_state: JobState) -> None:
    making_way = job.stop_state == JobState.QUEUED
    if JobState(job.state).is_terminal or (job.stop_requested_at is not None and not making_way):
        return
    job.stop_requested_at, job.stop_reason, job.stop_state = utcnow(), reason, as_state.value
    if job.state == JobState.QUEUED:
        job.reason = reason
        move(session, job, as_state, reason)
    else:
        tell(session, job, "stop_requested", reason)


def request_preempt(session: Session, job: Job, reason: str) -> bool:
    """Have a running job save, end and wait in the queue again; it is not held against it."""
    if job.state not in (JobState.STARTING, JobState.RUNNING) or job.stop_requested_at is not None:
        return False
    job.stop_requested_at, job.stop_reason, job.stop_state = utcnow(), reason, JobState.QUEUED.value
    tell(session, job, "preempted", reason)
    return True


def resume(ctx: Context, access: Access, name_or_id: str) -> JobView:
    """Continue a stopped or failed job, from its newest good checkpoint if it has one."""

    def work(session: Session) -> str:
        job = find.job(session, access, name_or_id)
        if job.state not in (JobState.STOPPED, JobState.FAILED):
            raise NotAllowedNow(f"Job '{job.name}' is {job.state}; only stopped and failed jobs can be resumed.")
        runs.refuse(job, "resumed")
        reopen(session, job, f"resumed by {access.principal.email}")
        return job.id

    job_id = ctx.db.write(work)
    ctx.live.job_changed(job_id, schedule=True)
    return get(ctx, access, job_id)


def reopen(session: Session, job: Job, text: str) -> None:
    """Queue a stopped or failed job again; what it did before is not held against it."""
    job.stop_requested_at = job.stop_reason = job.stop_state = job.exit_code = job.reason = None
    job.restarts_used, job.started_at = 0, None
    move(session, job, JobState.QUEUED, text, data={"after": job.attempts})


def delete(ctx: Context, access: Access, name_or_id: str) -> None:
    """A finished job with all it left behind."""

    def work(session: Session) -> tuple[list[str], list[str]]:
        job = find.job(session, access, name_or_id)
        if not JobState(job.state).is_terminal and job.run_id is None:
            raise NotAllowedNow(
                f"Job '{job.name}' is {job.state}; only finished jobs can be deleted.",
                hint=f"shoal training stop {job.name}",
            )
        return [job.id], remove(session, [job.id])

    gone = ctx.db.write(work, essential=True)
    clean_up(ctx, *gone)


def remove(session: Session, job_ids: Collection[str]) -> list[str]:
    """Their rows, whatever their state; returns their attempts, for `clean_up` once that is durable."""
    attempts = list(session.scalars(select(Attempt.id).where(Attempt.job_id.in_(job_ids))))
    session.execute(sql_delete(Job).where(Job.id.in_(job_ids)))
    return attempts


def clean_up(ctx: Context, job_ids: Collection[str], attempts: Collection[str]) -> None:
    """After jobs that are gone."""
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
