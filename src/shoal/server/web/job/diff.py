"""Difference between two jobs: code, settings, data, environment, hardware, seed; the step at which their metrics begin to
differ, and the likely cause."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import select

from shoal.core.artifacts import FileEntry
from shoal.core.comparing import by_weight, first_difference, is_of_time
from shoal.core.diffs import SECTIONS, Change, FileChange, JobDiff, MetricDifference, SampleDifference, Section
from shoal.core.errors import UsageError
from shoal.core.jobs import JobView
from shoal.server import lookup
from shoal.server.context import Context
from shoal.server.jobs import service as jobs
from shoal.server.metrics import reads as metric_reads
from shoal.server.models.datasets import Dataset
from shoal.server.policy import Access
from shoal.server.web.files import previews
from shoal.server.web.job import compare, diff_files, diff_samples, system_metrics
from shoal.server.web.job.diff_cause import Evidence, causes
from shoal.server.web.redact import Redactor

MOST_METRICS, MOST_POINTS = 12, 1_000_000
"""Limits on the metrics and points that are compared; at least one metric is compared, with every point."""
_HARMLESS = frozenset({"Restarts", "Priority", "Time limit (s)", "Budget", "Checkpoints kept", "Best kept by"})
_PLACES = frozenset({"Nodes", "Slots per node"})
_ELSEWHERE = frozenset({"Datasets", "Starts from"})

Fact = tuple[Section, str]


def diff(ctx: Context, access: Access, first: str, second: str) -> JobDiff:
    """Return the differences between two jobs and their likely causes."""
    views = [jobs.get(ctx, access, reference) for reference in (first, second)]
    if views[0].id == views[1].id:
        raise UsageError(
            "A job does not differ from itself; name two jobs.", hint=f"shoal training diff {views[0].name} OTHER"
        )
    hide = Redactor.of(ctx, access)
    feeds, drawn = _samples([metric_reads.ledger(ctx, access, view.id) for view in views])
    facts = [_facts(ctx, access, view, found, hide) for view, found in zip(views, feeds, strict=True)]
    changes = _changes(*facts)
    files, more = _files(ctx, access, views, hide)
    metric, first_step, last_step, starts = _numbers(ctx, access, views)
    resumes = [(view.name, at - 1) for view, told in zip(views, starts, strict=True) for at in told]
    samples_known = bool(feeds[0].keys() & feeds[1].keys())
    evidence = Evidence(
        changes=changes,
        files=files,
        metric=metric,
        samples=drawn,
        samples_known=samples_known,
        first_step=first_step,
        resumes=resumes,
    )
    return JobDiff(
        first=views[0].name,
        second=views[1].name,
        changes=changes,
        files=files,
        metric=metric,
        samples=drawn,
        samples_known=samples_known,
        first_step=first_step,
        last_step=last_step,
        causes=causes(evidence),
        notes=_notes(views, feeds, more, last_step),
    )


def _samples(ledgers: list[list[dict[str, Any]]]) -> tuple[list[dict[str, diff_samples.Feed]], SampleDifference | None]:
    """Return the loaders of both jobs and the first step with different samples; nothing if a record is invalid."""
    try:
        feeds = [diff_samples.feeds(ledger) for ledger in ledgers]
        return feeds, diff_samples.first_difference(*feeds)
    except (KeyError, TypeError, ValueError, IndexError, ArithmeticError, RuntimeError):
        return [{}, {}], None


def _facts(
    ctx: Context, access: Access, view: JobView, feeds: Mapping[str, diff_samples.Feed], hide: Redactor
) -> dict[Fact, str]:
    """Return everything known of a job except its files."""
    found = dict(_settings(ctx, access, view, hide))
    found |= {("data", name): text for name, text in _data(ctx, access, view)}
    told = system_metrics.environment(ctx, access, view.id)
    if told is not None:
        found[("environment", "python")] = told.python
        found |= {("environment", hide.text(name)): hide.text(text) for name, text in told.packages.items()}
    found |= {("hardware", name): text for name, text in _hardware(view)}
    for name, feed in feeds.items():
        suffix = "" if len(feeds) == 1 else f" of {hide.text(name)}"
        found[("seed", f"seed{suffix}")] = str(feed.about.get("seed"))
        found[("data", f"samples{suffix}")] = str(feed.about.get("size"))
        found[("data", f"global batch{suffix}")] = str(feed.about.get("batch"))
    return found


def _settings(ctx: Context, access: Access, view: JobView, hide: Redactor) -> Iterator[tuple[Fact, str]]:
    for (section, name), text in compare.settings_of(view, metric_reads.config(ctx, access, view.id), hide):
        if section == "Job" and name in _PLACES | _ELSEWHERE:
            continue
        shown = {"Config": f"config {name}", "Variables": f"${name}", "Secrets": f"secret {name}"}.get(section, name)
        yield ("settings", shown), text


def _data(ctx: Context, access: Access, view: JobView) -> Iterator[tuple[str, str]]:
    """Yield the inputs of a job by content: a version that was pushed again with the same files is the same data."""
    with ctx.db.read() as session:
        inputs = lookup.job(session, access, view.id).inputs
        for mount in inputs:
            name, manifest_id = mount["name"], mount["manifest_id"]
            if mount["path"] == "/input-checkpoint":
                yield "starts from", f"{name} ({manifest_id[:8]})"
                continue
            mine = select(Dataset.version).where(Dataset.workspace_id == access.workspace_id, Dataset.name == name)
            version = session.scalar(mine.where(Dataset.manifest_id == manifest_id).limit(1))
            told = f"version {version}" if version is not None else "a deleted version"
            yield f"dataset {name}", f"{told} ({manifest_id[:8]})"


def _hardware(view: JobView) -> Iterator[tuple[str, str]]:
    if not view.attempt_list:
        return
    nodes = view.attempt_list[-1].nodes
    yield "workers", f"{len(nodes)} × {view.accels}"
    yield "machines", ", ".join(sorted({node.machine for node in nodes}))


def _changes(first: Mapping[Fact, str], second: Mapping[Fact, str]) -> list[Change]:
    found = []
    for key in sorted(first.keys() | second.keys(), key=lambda k: (SECTIONS.index(k[0]), k[1])):
        section, name = key
        one, other = first.get(key), second.get(key)
        # A section that only one job has reported so far is not known to differ.
        unknown = section in ("environment", "hardware", "seed") and not _both_have(first, second, section)
        if one != other and not unknown:
            matters = name not in _HARMLESS
            found.append(Change(section=section, name=name, first=one, second=other, matters=matters))
    return found


def _both_have(first: Mapping[Fact, str], second: Mapping[Fact, str], section: Section) -> bool:
    return all(any(key[0] == section for key in facts) for facts in (first, second))


def _files(ctx: Context, access: Access, views: list[JobView], hide: Redactor) -> tuple[list[FileChange], int]:
    trees = [previews.of_job(ctx, access, view.id).manifest for view in views]

    def read(entry: FileEntry) -> bytes:
        return b"".join(ctx.store.get(chunk.hash) for chunk in entry.chunks)

    return diff_files.compare(trees[0], trees[1], read, hide.text)


def _numbers(
    ctx: Context, access: Access, views: list[JobView]
) -> tuple[MetricDifference | None, int | None, int | None, list[list[int]]]:
    """Return the first difference, the first and last common step, and the steps at which later attempts of each began."""
    known = [{m.name: m.count for m in metric_reads.names(ctx, access, view.id) if m.kind == "step"} for view in views]
    names = _worth_reading(*known)
    if not names:
        return None, None, None, [[], []]
    told = [
        json.loads(
            metric_reads.read(ctx, access, view.id, names=names, points=None, axis="step", after=0, ghosts=False)
        )
        for view in views
    ]
    points = [{name: {int(x): value for x, value in one["metrics"].get(name, [])} for name in names} for one in told]
    shared = sorted({s for name in names for s in points[0][name].keys() & points[1][name].keys()})
    starts = [[int(step) for attempt, step in one["starts"].items() if int(attempt) > 1] for one in told]
    found = first_difference(points[0], points[1], names)
    metric = None
    if found is not None:
        metric = MetricDifference(
            name=found.name, step=found.step, first=found.first, second=found.second,
            relative=_relative(found.first, found.second),
        )  # fmt: skip
    return metric, shared[0] if shared else None, shared[-1] if shared else None, starts


def _worth_reading(first: Mapping[str, int], second: Mapping[str, int]) -> list[str]:
    """Return the metrics to compare, given metric → number of points of each job: common losses, else other common ones.

    Only metrics of which low or high values are better: a logged learning rate is a setting, and differs before it has an
    effect. The number of points is limited, so that the comparison does not take long.
    """
    shared = [name for name in first.keys() & second.keys() if not is_of_time(name)]
    losses = [name for name in shared if "loss" in name.lower()]
    names = by_weight(losses or [name for name in shared if compare.better(name)])[:MOST_METRICS]
    read = list(itertools.accumulate(first[name] + second[name] for name in names))
    return [name for number, name in enumerate(names) if number == 0 or read[number] <= MOST_POINTS]


def _relative(first: Any, second: Any) -> float | None:
    if isinstance(first, str) or isinstance(second, str):
        return None
    largest = max(abs(first), abs(second))
    return float(abs(first - second) / largest) if largest else 0.0


def _notes(
    views: list[JobView], feeds: list[dict[str, diff_samples.Feed]], more: int, last_step: int | None
) -> list[str]:
    found = [f"{more} more files differ"] if more else []
    if last_step is None:
        found.append("they have no metric in common, so the step at which they begin to differ is unknown")
    silent = [view.name for view, told in zip(views, feeds, strict=True) if not told]
    if silent:
        found.append(f"the samples used by {' and '.join(silent)} are unknown: no loader was passed to run.prepare")
    return found
