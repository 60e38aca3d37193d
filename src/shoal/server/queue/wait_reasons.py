"""Text for the scheduler's explanations: the reason, the evidence, and a suggestion as a command to type."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime

from shoal.agent.workers.frames import names as rank_names
from shoal.core.durations import short_duration
from shoal.core.queue import JobChange, Suggestion, WhyView
from shoal.server.models.jobs import Event, Job
from shoal.server.policy import Access
from shoal.server.scheduler.decide import needed
from shoal.server.scheduler.explain import Change, Explanation
from shoal.server.scheduler.kinds import Kinds
from shoal.server.scheduler.model import Hold, QueuedJob, QueueState

MOST = 5
"""Most jobs named as evidence."""
_FIELDS = {"limit_s": "time_limit_s"}


def not_waiting(job: Job) -> WhyView:
    why = f": {job.reason}" if job.reason else ""
    return WhyView(job=job.name, status=job.state, reason="not_waiting", text=f"it is {job.state}{why}", evidence=[])


def in_engine(job: Job, text: str) -> WhyView:
    """Explain a job that waits in its engine's own queue, which Shoal does not control."""
    return WhyView(job=job.name, status=job.state, reason="engine", text=text, evidence=[])


def after_others(job: Job, text: str) -> WhyView:
    """Explain a job that starts after another one."""
    return WhyView(job=job.name, status=job.state, reason=Hold.AFTER.value, text=text, evidence=[])


def stalled(job: Job, found: Event) -> WhyView:
    """Explain a running job whose ranks wait for each other."""
    groups = [f"{rank_names(group['ranks'])} {group['where']}" for group in found.data.get("groups", [])]
    text = f"it is running, but {found.message.partition(': ')[0]}"
    return WhyView(job=job.name, status=job.state, reason="stalled", text=text, evidence=groups)


def why_view(seen: QueueState, job: Job, access: Access, told: Explanation, names: Mapping[str, str]) -> WhyView:
    asked = next(queued for queued in seen.queue if queued.job_id == job.id)
    starts_in_s = told.forecast.starts_in_s
    return WhyView(
        job=job.name,
        status=job.state,
        reason=told.hold.value if told.hold else "starting",
        text=_text(told, names),
        evidence=_evidence(seen, asked, told, names),
        place=None if told.hold is None else len(told.ahead) + 1,
        starts_at=None if starts_in_s is None else datetime.fromtimestamp(seen.now + starts_in_s, UTC),
        sure=told.forecast.sure,
        suggestion=_suggestion(told.change, asked, job, access, names) if told.change else None,
    )


def _text(told: Explanation, names: Mapping[str, str]) -> str:
    if told.hold is not Hold.TURN:
        return told.text
    number = len(told.ahead)
    before = f"{number} job{' is' if number == 1 else 's are'} before it in the queue"
    if told.fits_now and told.head is not None:
        return f"{before}; enough slots are free, but it might delay {_called(told.head, names)}, which is next"
    return before


def _evidence(seen: QueueState, asked: QueuedJob, told: Explanation, names: Mapping[str, str]) -> list[str]:
    kinds = Kinds.seen(seen)
    usable = [m for m in seen.machines if kinds.may_use(asked, m.name)]
    free, total = sum(len(m.free) for m in usable), sum(m.slots for m in usable)
    most = max((len(m.free) for m in usable), default=0)
    lines = [f"it needs {needed(asked, kinds)}; {free} of {total} are free, at most {most} on one machine"]
    out = [f"{m.name} is {m.state}" for m in seen.away if m.slots and kinds.may_use(asked, m.name)]
    if out and told.hold is not Hold.MACHINES:  # there the reason itself names them
        lines.append(f"not counted: {', '.join(out[:MOST])}{', …' if len(out) > MOST else ''}")
    if told.ahead:
        shown = ", ".join(_called(job_id, names) for job_id in told.ahead[:MOST])
        more = len(told.ahead) - MOST
        lines.append(f"before it: {shown}{f' and {more} more' if more > 0 else ''}")
    ends = {r.job_id: r.ends_in_s for r in seen.running}
    for job_id in [] if told.fits_now else told.waits_for[:MOST]:
        held = next(r.total for r in seen.running if r.job_id == job_id)
        lines.append(f"{_called(job_id, names)} holds {held} and ends {_in(ends[job_id])}")
    if told.head is not None and told.head != asked.job_id:
        lines.append(f"{_called(told.head, names)} is next and starts {_in(told.head_starts_in_s)}")
    share = seen.shares.get(asked.workspace)
    if share is not None and share.quota is not None:
        held = sum(r.total for r in seen.running if r.workspace == asked.workspace)
        lines.append(f"its workspace holds {held} of the {share.quota} slots it may hold at once")
    return lines


def _suggestion(change: Change, asked: QueuedJob, job: Job, access: Access, names: Mapping[str, str]) -> Suggestion:
    words, options = _in_words(change, asked)
    job_change = JobChange.model_validate({_FIELDS.get(k, k): _plain(v) for k, v in change.fields.items()})
    where = [] if access.workspace == "default" else ["-w", access.workspace]
    commands = []
    if change.quota is not None:
        words.insert(0, f"a quota of {change.quota} slots (set by an admin)")
        commands.append(["shoal", "queue", "quota", access.workspace_id, "--slots", str(change.quota)])
    if options:
        commands.append(["shoal", "training", "change", job.name, *options, *where])
    preempts = [_called(victim, names) for victim in change.preempts]
    jobs = "1 job" if len(preempts) == 1 else f"{len(preempts)} jobs"
    preempted = f", and {jobs} of lower priority would save and be preempted" if preempts else ""
    return Suggestion(
        what=f"with {' and '.join(words)} it would start now{preempted}",
        command=" && ".join(map(shlex.join, commands)),
        change=job_change if change.fields else None,
        preempts=preempts,
    )


def _in_words(change: Change, asked: QueuedJob) -> tuple[list[str], list[str]]:
    words, options = [], []
    fields = change.fields
    if "exclude" in fields:
        words.append("no machine excluded")
        options.append("--any-machine")
    if "limit_s" in fields:
        limit = short_duration(int(fields["limit_s"]))
        words.append(f"a time limit of {limit}")
        options += ["--time-limit", limit]
    if "min_nodes" in fields:
        low, high = fields["min_nodes"], asked.max_nodes
        words.append(f"as few as {low} node{'s' if low > 1 else ''}")
        options += ["--nodes", str(low) if low == high else f"{low}:{high}"]
    if "accels" in fields:
        words.append(f"{fields['accels']} slot{'s' if fields['accels'] > 1 else ''} per node")
        options += ["--accels", str(fields["accels"])]
    if "mixed_models" in fields:
        words.append("different GPU models on its nodes")
        options.append("--mixed-models")
    if "device" in fields:
        words.append("slots of any kind")
        options += ["--device", str(fields["device"])]
    if "priority" in fields:
        words.append(f"priority {fields['priority']}")
        options += ["--priority", str(fields["priority"])]
    return words, options


def _plain(value: object) -> object:
    if isinstance(value, frozenset):
        return sorted(value)
    return int(value) if isinstance(value, float) else value


def _called(job_id: str, names: Mapping[str, str]) -> str:
    return f"'{names[job_id]}'" if job_id in names else "a job of another workspace"


def _in(seconds: float | None) -> str:
    if seconds is None:
        return "at an unknown time"
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"in about {max(1, round(seconds))} s"
    return f"in about {minutes} min" if minutes < 120 else f"in about {round(seconds / 3600)} h"
