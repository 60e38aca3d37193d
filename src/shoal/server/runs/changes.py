"""Changes of the tags, titles, notes, stars and archive of jobs."""

from __future__ import annotations

from sqlalchemy.orm import Session

from shoal.core.errors import InvalidSpec
from shoal.core.runs import MAX_TAGS, RunAbout, RunChange
from shoal.core.schema import utcnow
from shoal.server import lookup
from shoal.server.context import Context
from shoal.server.models.jobs import Job
from shoal.server.policy import Access


def change(ctx: Context, access: Access, request: RunChange) -> list[RunAbout]:
    """Change all these jobs, or none if one of them is unknown."""

    def work(session: Session) -> tuple[list[str], list[RunAbout]]:
        jobs = {job.id: job for name in request.jobs if (job := lookup.job(session, access, name))}
        for job in jobs.values():
            _change(job, request)
        return list(jobs), [about(job) for job in jobs.values()]

    ids, found = ctx.db.write(work)
    for job_id in ids:
        ctx.live.job_changed(job_id)
    return found


def about(job: Job) -> RunAbout:
    return RunAbout(
        id=job.id,
        name=job.name,
        tags=job.tags,
        title=job.title,
        description=job.description,
        note=job.note,
        starred=job.starred,
        archived=job.archived_at is not None,
    )


def _change(job: Job, request: RunChange) -> None:
    tags = [tag for tag in dict.fromkeys([*job.tags, *request.add_tags]) if tag not in request.remove_tags]
    if len(tags) > MAX_TAGS:
        raise InvalidSpec(f"Job '{job.name}' would have {len(tags)} tags; the maximum is {MAX_TAGS}.")
    job.tags = tags
    for name in ("title", "description", "note", "starred"):
        value = getattr(request, name)
        if value is not None:
            setattr(job, name, value.strip() if name == "title" else value)
    if request.archived is not None:
        job.archived_at = (job.archived_at or utcnow()) if request.archived else None
