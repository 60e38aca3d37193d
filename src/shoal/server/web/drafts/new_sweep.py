"""Data of the new-sweep page: the number of trials, the command, and the metrics that an earlier run has logged."""

from __future__ import annotations

from typing import Any

from shoal.core.errors import ShoalError
from shoal.core.jobs import JobView
from shoal.core.metrics import MetricName
from shoal.server.context import Context
from shoal.server.jobs import service as jobs
from shoal.server.metrics import reads as metric_reads
from shoal.server.policy import Access
from shoal.server.web.command import sweep_command, where_to_run
from shoal.server.web.drafts import new_job
from shoal.server.web.drafts import sweep as sweep_drafts
from shoal.server.web.drafts.job import in_step
from shoal.server.web.drafts.new_job import Preview
from shoal.server.web.drafts.sweep import FieldNote, SweepDraft, to_sweep
from shoal.server.web.format import duration, plural
from shoal.server.web.job.compare import better

_MOST_METRICS = 200


class SweepPreview(Preview):
    """Texts that the page shows beside a draft of a sweep."""

    trials: str
    """Number of trials as text; empty while it is unknown."""
    told: list[FieldNote]
    """Texts beside the fields."""
    notes: list[str] = []


def form_data(ctx: Context, access: Access, draft: SweepDraft) -> dict[str, Any]:
    """Return all data of the page for a draft."""
    found = new_job.code(ctx, access, draft.source_id) if draft.source_id else None
    return {
        "source": found,
        "error": None,
        "metrics": _metric_names(ctx, access, draft.like),
        **preview(ctx, access, draft),
        **new_job.choices(ctx, access),
    }


def like_job(ctx: Context, access: Access, job: JobView) -> SweepDraft:
    """Return a draft of a sweep of this job, compared by the most likely one of the metrics it logged."""
    draft = sweep_drafts.from_job(job)
    env = [pair for pair in draft.env if pair.name != "SHOAL_PARAMS"]  # set for a trial; each new trial gets its own
    draft = draft.model_copy(update={"like": job.id, "env": env})
    logged = [m for m in metric_reads.names(ctx, access, job.id) if m.min is not None]
    chosen = min(logged, key=_unlikeliness, default=None)
    if chosen is None:
        return draft
    direction = "max" if better(chosen.name) == "highest" else "min"
    return draft.model_copy(update={"metric": chosen.name, "direction": direction})


def preview(ctx: Context, access: Access, draft: SweepDraft) -> dict[str, Any]:
    """Return the draft with consistent arguments, the texts beside its fields, its command, and whether a trial would start
    now."""
    told, number = sweep_drafts.field_notes(draft), sweep_drafts.count(draft)
    trials = "" if number is None else plural(number, "trial")
    try:
        draft = in_step(draft)
        spec = to_sweep(draft, unfinished=True)
    except ShoalError as error:
        problem = f"{error.message} {error.hint}" if error.hint else error.message
        shown = SweepPreview(command=None, problem=problem, fit=None, fit_text="", trials=trials, told=told)
        return {"draft": draft, "preview": shown}
    fits, text = new_job.fit(ctx, access, spec.job)
    source = new_job.origin(ctx, access, draft.source_id)
    shown = SweepPreview(
        command=sweep_command(spec, workspace=access.workspace, source=source),
        problem=None,
        where=where_to_run(source),
        fit=fits,
        fit_text=text.replace("It would", "The first trial would", 1),
        trials=trials,
        told=told,
        notes=_notes(ctx, access, draft, spec.parallel, number),
    )
    return {"draft": draft, "preview": shown}


def _notes(ctx: Context, access: Access, draft: SweepDraft, parallel: int, number: int | None) -> list[str]:
    notes = []
    words = {word.partition("=")[0] for word in draft.words()}
    for name in sweep_drafts.space_of(draft):
        if f"--{name}" in words:
            notes.append(f"--{name} is among the arguments too; each trial's own value comes after it.")
    took = _duration_s(ctx, access, draft.like)
    if took is not None and number is not None:
        rounds = -(-number // parallel)
        notes.append(f"About {duration(rounds * took)} if each trial takes as long as the original job.")
    return notes


def _duration_s(ctx: Context, access: Access, like: str) -> float | None:
    view = _job(ctx, access, like)
    if view is None or view.started_at is None or view.ended_at is None or view.status != "succeeded":
        return None
    return (view.ended_at - view.started_at).total_seconds()


def _metric_names(ctx: Context, access: Access, like: str) -> list[str]:
    view = _job(ctx, access, like)
    if view is None:
        return []
    found = metric_reads.names(ctx, access, view.id)
    return [metric.name for metric in sorted(found, key=_unlikeliness)][:_MOST_METRICS]


def _job(ctx: Context, access: Access, like: str) -> JobView | None:
    """Return the job that the draft was made from; None if there is none (any more)."""
    try:
        return jobs.get(ctx, access, like) if like else None
    except ShoalError:
        return None


def _unlikeliness(metric: MetricName) -> tuple[bool, bool, bool, str]:
    """Return the sort key of a metric: first those measured on validation or test data, and among these a loss."""
    name = metric.name.lower()
    apart = metric.kind == "eval" or any(word in name for word in ("eval", "val", "test"))
    return not apart, "loss" not in name, better(name) is None, name
