"""Decides the sandbox of a job from the server's settings and the job's limits."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from shoal.core.agents import JobLimits, SandboxRequirements
from shoal.core.errors import InvalidSpec
from shoal.core.settings import ServerSettings
from shoal.core.sizes import parse_size
from shoal.server.context import Context
from shoal.server.models.users import User

_LEVELS = ("", "S0", "S1", "S2", "S3")


def check(settings: ServerSettings, *, private: bool) -> None:
    """Raise InvalidSpec if the settings allow jobs of a shared server to run without a sandbox, or name no level."""
    if settings.job_sandbox not in _LEVELS:
        raise InvalidSpec(f"job_sandbox: {settings.job_sandbox!r} is not a level.", hint="S0, S1, S2 or S3")
    if settings.job_sandbox == "S0" and not private:
        raise InvalidSpec(
            "job_sandbox = S0 is for a private server on loopback only: without a sandbox every job could read all data.",
            hint="shoal server start --job-sandbox S1",
        )


def requirements(ctx: Context, spec: dict[str, Any]) -> SandboxRequirements:
    """Return the sandbox of a job.

    On a private server jobs are programs of its owner and see the owner's files, unless job_sandbox requires S2 or S3.
    """
    settings = ctx.settings
    private = ctx.private and not _is_used_by_many(ctx)
    given = settings.job_sandbox if private or settings.job_sandbox != "S0" else ""
    least: Any = given or ("S0" if private else "S3")
    egress, allow = _egress(settings.job_egress)
    limits = JobLimits(
        memory=_bytes(spec.get("memory")),
        cpus=round(100 * (spec.get("cpus") or 0)),
        disk=_bytes(spec.get("disk")) or settings.job_disk_gb << 30,
        shm=_bytes(spec.get("shm")),
    )
    return SandboxRequirements(
        least="off" if given == "S0" else least,
        files="own" if least in ("S2", "S3") else "machine",
        egress=egress,
        allow=allow,
        limits=limits,
    )


def _bytes(text: str | None) -> int:
    return parse_size(text, "size") if text else 0


def _is_used_by_many(ctx: Context) -> bool:
    with ctx.db.read() as session:
        return len(session.scalars(select(User.id).limit(2)).all()) > 1


def _egress(text: str) -> tuple[Any, list[str]]:
    if text in ("open", "none"):
        return text, []
    return "list", [name.strip() for name in text.split(",") if name.strip()]
