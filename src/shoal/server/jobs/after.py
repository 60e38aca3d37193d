"""Jobs that start after others: the references to them, the outputs they hand over, and the chain that a page shows.

Whether such a job may start is decided in `scheduler.after`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Text, func, select, type_coerce
from sqlalchemy.orm import Session

from shoal.core.errors import InvalidSpec
from shoal.core.jobs import AfterView, JobSpec
from shoal.core.states import JobState
from shoal.server import lookup
from shoal.server.artifacts import checkpoints
from shoal.server.context import Context
from shoal.server.jobs.events import record_event
from shoal.server.models.jobs import Job
from shoal.server.policy import Access
from shoal.server.scheduler.after import is_hopeless, past

_outputs_lock = threading.Lock()
_MOST_CHAINED, _MOST_CONNECTED = 1_000, 60
"""Most jobs with others before them that are looked at for a graph, newest first, and most jobs of one graph."""


def resolve(session: Session, access: Access, spec: JobSpec) -> None:
    """Replace the references to other jobs by their names and ids; raise if one is unknown or has failed already."""
    found = []
    for one in spec.after:
        job = lookup.job(session, access, one.job)
        if is_hopeless(one.when, JobState(job.state)):
            raise InvalidSpec(
                f"Job '{job.name}' {past(job.state)}, so a job that starts after its success would never start.",
                hint=f"shoal training resume {job.name}; or start after any end of it: --after {job.name}:ended",
            )
        found.append(one.model_copy(update={"job": job.name, "id": job.id, "at": one.at or job.name}))
    if len({one.id for one in found}) < len(found) or len({one.at for one in found}) < len(found):
        raise InvalidSpec("The same job is given twice in --after.")
    if doubled := {one.at for one in found} & {name.partition("@")[0] for name in spec.datasets}:
        raise InvalidSpec(
            f"'{min(doubled)}' names a dataset and a job to start after; both would be at /input/{min(doubled)}."
        )
    spec.after = found


def mount_outputs(ctx: Context, job_id: str) -> None:
    """Mount the newest checkpoint of each job that this one starts after at /input/NAME; once, before its first start.

    Jobs without a checkpoint have nothing to hand over.
    """
    with _outputs_lock:
        with ctx.db.read() as session:
            job = session.get_one(Job, job_id)
            mounted = {mount["path"] for mount in job.inputs}
        after = [one for one in job.spec.get("after") or () if _path(one) not in mounted]
        if not after or job.attempts > 1:
            return
        with ctx.gc_lock.open():
            outputs = [(one, checkpoints.newest_intact(ctx, one["id"])) for one in after]
            new = [
                {"path": _path(one), "name": found[0], "manifest_id": ctx.store.put_manifest(found[1])}
                for one, found in outputs
                if found
            ]
            if new:
                ctx.db.write(lambda session: _add_inputs(session, job_id, new))


def chain(session: Session, job: Job) -> list[AfterView]:
    """Return the jobs that this one starts after, and those that start after it, each with its state."""
    before = {one["id"]: one for one in job.spec.get("after") or ()}
    rows = {row.id: row for row in session.scalars(select(Job).where(Job.id.in_(before)))}
    found = [
        AfterView(job=one["job"], id=key, when=one["when"], status=JobState(rows[key].state) if key in rows else None)
        for key, one in before.items()
    ]
    # Ids are sortable by time, so that only jobs submitted later are read.
    later = select(Job).where(Job.workspace_id == job.workspace_id, Job.id > job.id)
    for row in session.scalars(later.where(type_coerce(Job.spec, Text).contains(job.id)).order_by(Job.id).limit(100)):
        for one in row.spec.get("after") or ():
            if one["id"] == job.id:
                found.append(
                    AfterView(job=row.name, id=row.id, when=one["when"], status=JobState(row.state), is_next=True)
                )
    return found


def connected(session: Session, access: Access, job_id: str) -> list[Job]:
    """Return this job and all that are before or after it, directly or in turn; at most `_MOST_CONNECTED`."""
    chained = select(Job).where(
        Job.workspace_id == access.workspace_id, func.json_array_length(Job.spec, "$.after") > 0
    )
    links: dict[str, set[str]] = {}
    for job in session.scalars(chained.order_by(Job.id.desc()).limit(_MOST_CHAINED)):
        for one in job.spec["after"]:
            links.setdefault(job.id, set()).add(one["id"])
            links.setdefault(one["id"], set()).add(job.id)
    found, left = {job_id}, [job_id]
    while left and len(found) < _MOST_CONNECTED:
        new = links.get(left.pop(0), set()) - found
        found |= new
        left += sorted(new)
    same = select(Job).where(Job.workspace_id == access.workspace_id, Job.id.in_(found))
    return list(session.scalars(same.order_by(Job.id)))


def _add_inputs(session: Session, job_id: str, new: list[dict[str, str]]) -> None:
    job = session.get_one(Job, job_id)
    job.inputs = [*job.inputs, *new]
    text = ", ".join(f"{mount['name']} at {mount['path']}" for mount in new)
    record_event(session, job, "inputs", f"given the checkpoints of the jobs before it: {text}", attempt=job.attempts)


def _path(one: Mapping[str, Any]) -> str:
    return f"/input/{one['at']}"
