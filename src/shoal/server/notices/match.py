"""Finding of what rules match: jobs that changed, leases that end soon, devices that were drained."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import quote

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.notices import DEFAULT_BUDGET, DEFAULT_LEASE_S
from shoal.core.states import JobState
from shoal.server.billing import budgets
from shoal.server.db import in_parts
from shoal.server.models.jobs import Event, Job
from shoal.server.models.leases import Lease
from shoal.server.models.notices import NoticeRule
from shoal.server.models.pool import DrainedDevice
from shoal.server.models.runs import RunMetric

_METRICS = ("metric_nan", "metric_above", "metric_below")


@dataclass(frozen=True, slots=True)
class Match:
    """Rule that matched, and the notice it makes."""

    rule: NoticeRule
    key: str
    """Identifies what happened: the same is not told twice."""
    title: str
    text: str
    path: str
    job: tuple[str, str, str] | None = None
    """Id, name and status."""


def jobs(session: Session, rules: Sequence[NoticeRule], job_ids: Collection[str]) -> Iterator[Match]:
    """Yield what rules match in these jobs. A rule does not look at what ended before it was made."""
    by_workspace: dict[str, list[NoticeRule]] = {}
    for rule in rules:
        by_workspace.setdefault(rule.workspace_id, []).append(rule)
    for some in in_parts(list(job_ids)):
        query = select(Job).where(Job.id.in_(some), Job.kind == "job", Job.workspace_id.in_(list(by_workspace)))
        for job in session.scalars(query):
            for rule in by_workspace[job.workspace_id]:
                is_new = job.ended_at is None or job.ended_at >= rule.created_at
                if is_new and (not rule.jobs or fnmatch.fnmatchcase(job.name, rule.jobs)):
                    yield from _of_job(session, rule, job)


def leases(session: Session, rules: Sequence[NoticeRule], now: datetime) -> Iterator[Match]:
    """Yield the leases that end within the time of a rule."""
    for rule in rules:
        within = timedelta(seconds=rule.value if rule.value is not None else DEFAULT_LEASE_S)
        query = select(Lease).where(
            Lease.workspace_id == rule.workspace_id, Lease.ended_at.is_(None), Lease.expires_at.is_not(None),
            Lease.expires_at <= now + within,
        )  # fmt: skip
        if not rule.shared:
            query = query.where(Lease.user_id == rule.user_id)
        for lease in session.scalars(query):
            end = f"{lease.expires_at:%Y-%m-%d %H:%M} UTC"
            yield Match(
                rule, f"lease {lease.id} {end}", f"Rented machine {lease.name} ends at {end}",
                f"Extend it with: shoal machine extend {lease.name} 1h", f"/w/{_q(rule.workspace_id)}/leases",
            )  # fmt: skip


def devices(session: Session, rules: Sequence[NoticeRule]) -> Iterator[Match]:
    """Yield the devices that were drained since a rule was made."""
    rows = session.scalars(select(DrainedDevice)).all() if rules else []
    for rule in rules:
        for row in rows:
            if row.since >= rule.created_at:
                key = f"device {row.machine} {row.device} {row.since.isoformat()}"
                text = f"{row.device}: {row.reason}. It takes no new jobs until it is undrained."
                yield Match(rule, key, f"A device of {row.machine} was drained", text, "/machines")


def _of_job(session: Session, rule: NoticeRule, job: Job) -> Iterator[Match]:
    path = f"/w/{_q(job.workspace_id)}/jobs/{_q(job.id)}"
    about = (job.id, job.name, job.state)
    if rule.kind in ("job_ended", "job_failed"):
        if job.ended_at is not None and (rule.kind == "job_ended" or job.state == JobState.FAILED):
            key = f"end {job.id} {job.ended_at.isoformat()}"
            yield Match(rule, key, f"{job.name} {job.state}", job.reason or "", path, about)
    elif rule.kind == "job_stalled":
        stalls = select(Event).where(Event.job_id == job.id, Event.kind == "stalled", Event.at >= rule.created_at)
        for event in session.scalars(stalls):
            yield Match(rule, f"stall {job.id} {event.seq}", f"{job.name} stalled", event.message, path, about)
    elif rule.kind in _METRICS:
        yield from _of_metric(session, rule, job, path, about)
    elif rule.kind == "budget":
        share, limit = budgets.used_share(session, job), rule.value if rule.value is not None else DEFAULT_BUDGET
        if share is not None and share >= limit:
            title = f"{job.name} has used {share:.0%} of its budget"
            yield Match(rule, f"budget {job.id} {limit}", title, f"Budget: {job.spec['budget']}", path, about)


def _of_metric(session: Session, rule: NoticeRule, job: Job, path: str, about: tuple[str, str, str]) -> Iterator[Match]:
    query = select(RunMetric).where(RunMetric.job_id == job.id)
    if rule.metric:
        query = query.where(RunMetric.name == rule.metric)
    for row in session.scalars(query):
        if rule.kind == "metric_nan":
            hit, what = row.last is None and row.count > 0, "is not a finite number"
        else:
            above = rule.kind == "metric_above"
            limit = rule.value if rule.value is not None else 0.0
            hit = row.last is not None and (row.last > limit if above else row.last < limit)
            what = f"is {row.last:.5g}, {'above' if above else 'below'} {limit:g}" if row.last is not None else ""
        if hit:
            key = f"{rule.kind} {rule.value} {row.name} {job.id}"
            yield Match(
                rule, key, f"{job.name}: {row.name} {what}", f"At step {row.last_step}.", f"{path}/metrics", about
            )
            return


def _q(text: str) -> str:
    return quote(text, safe="")
