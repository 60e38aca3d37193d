"""Find a job that has done the same before: same code, inputs and options, and it succeeded."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.artifacts import FileEntry
from shoal.core.jobs import JobSpec
from shoal.core.project_file import FILE_NAME
from shoal.core.states import JobState
from shoal.server.context import Context
from shoal.server.models.jobs import Job
from shoal.server.models.sources import Source
from shoal.server.policy import Access

_MOST = 200
"""Most jobs that are compared, newest first."""
_NO_MATTER = {
    "name", "source_id", "priority", "batch", "expected_s", "time_limit_s", "budget", "exclude", "prefer", "grace_s",
    "max_restarts", "stall_timeout_s", "on_stall", "keep_last", "keep_best",
}  # fmt: skip
"""Fields of a specification that do not change what a job that succeeds has done."""


def find(
    ctx: Context, session: Session, access: Access, spec: JobSpec, manifest_id: str, inputs: list[dict[str, str]]
) -> Job | None:
    """Return the newest job that succeeded with this code, these inputs and these options, or None.

    The project file does not count as code: the options that it gave are compared themselves.
    """
    wanted, code = _essence(spec), _code(ctx, manifest_id)
    done = (
        select(Job, Source.manifest_id)
        .join(Source, Source.id == Job.source_id)
        .where(Job.workspace_id == access.workspace_id, Job.kind == "job", Job.run_id.is_(None))
        .where(Job.state == JobState.SUCCEEDED.value)
        .order_by(Job.id.desc())
        .limit(_MOST)
    )
    for job, manifest in session.execute(done):
        old = JobSpec.model_validate(job.spec)
        handed_over = {f"/input/{one.at}" for one in old.after}
        given = [mount for mount in job.inputs if mount["path"] not in handed_over]
        if _essence(old) == wanted and given == inputs and _code(ctx, manifest) == code:
            return job
    return None


def _essence(spec: JobSpec) -> dict[str, Any]:
    return spec.model_dump(mode="json", exclude=_NO_MATTER)


def _code(ctx: Context, manifest_id: str) -> list[FileEntry]:
    return [file for file in ctx.store.get_manifest(manifest_id).files if file.path != FILE_NAME]
