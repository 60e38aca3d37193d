"""Likely causes of a difference between the metrics of two jobs, from what differs between them and from the step at which
the metrics begin to differ.

A pure decision. It is based on when a difference can first have an effect: the loss of the first step depends on data,
weights and code, but not on the learning rate, since there was no update before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shoal.core.diffs import Cause, Change, FileChange, MetricDifference, SampleDifference

Kind = Literal[
    "seed",
    "batch",
    "data",
    "start",
    "optimizer",
    "schedule",
    "model",
    "code",
    "package",
    "workers",
    "machine",
    "naming",
    "other",
]
When = Literal["samples", "first", "early", "second", "later"]
"""Point at which the jobs begin to differ. `early`: at the first step they have reported, which is not the first of the run."""
MOST_CAUSES = 5
UNLIKELY = 20
"""Score below which a cause cannot well explain a difference at that step."""
TINY = 1e-4
"""Relative difference below which a different order of summation explains it."""

_KINDS: tuple[tuple[Kind, str], ...] = (
    ("seed", r"seed"),
    ("batch", r"batch|bs|bsz|accumulat\w*|shuffle|drop_last|(?:max|num)_(?:samples|examples)|subset|limit|split|fold"),
    ("optimizer", r"lr|learning|rate|decay|wd|momentum|betas?|beta\d|eps|epsilon|optim\w*|clip|clipping|grad\w*|nesterov"),
    ("schedule", r"warm\w*|schedul\w*|steps|epochs?|anneal\w*|gamma|patience"),
    ("model", r"hidden|layers?|width|depth|dim|heads?|dropout|model|init|vocab\w*|embed\w*|kernel|channels?|features?|dtype|precision|amp"),
    ("naming", r"out\w*|save\w*|log\w*|names?|run|project|tags?|notes?|verbose|debug|print\w*|every"),
    ("data", r"data\w*|corpus|tokeni[sz]er|max_len\w*|seq_?len\w*|context|augment\w*"),
)  # fmt: skip
_LIKELY: dict[When, dict[Kind, int]] = {
    "samples": {"seed": 100, "batch": 95, "data": 90, "workers": 80, "start": 70, "code": 60, "package": 30, "schedule": 20, "other": 45, "optimizer": 5, "model": 5, "machine": 5, "naming": 2},
    "first": {"start": 96, "data": 92, "seed": 88, "model": 84, "code": 78, "batch": 76, "workers": 70, "other": 66, "package": 60, "machine": 30, "schedule": 14, "optimizer": 10, "naming": 2},
    "second": {"optimizer": 95, "schedule": 88, "code": 76, "other": 70, "package": 55, "seed": 50, "model": 45, "workers": 42, "machine": 30, "data": 28, "start": 25, "batch": 20, "naming": 2},
    "later": {"schedule": 84, "code": 76, "optimizer": 70, "other": 66, "data": 60, "package": 55, "seed": 52, "workers": 50, "machine": 40, "batch": 36, "model": 30, "start": 20, "naming": 2},
}  # fmt: skip
_LIKELY["early"] = {kind: max(score, _LIKELY["second"][kind]) for kind, score in _LIKELY["first"].items()}
_NUMERIC: frozenset[Kind] = frozenset({"workers", "machine", "package"})
_SAID: dict[Kind, str] = {
    "seed": "a different seed gives different weights, samples and dropout",
    "batch": "it decides which samples a step uses",
    "data": "the samples have different contents",
    "start": "the jobs start from different weights",
    "optimizer": "it affects the loss after the first update",
    "schedule": "it changes the updates over time",
    "model": "the model is different",
    "code": "the script is different",
    "package": "a different version may compute or draw random numbers differently",
    "workers": "the work is divided among a different number of workers",
    "machine": "different hardware adds numbers in a different order",
    "naming": "it names outputs and seldom changes a result",
    "other": "the script gets a different setting",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    changes: Sequence[Change]
    files: Sequence[FileChange]
    metric: MetricDifference | None
    samples: SampleDifference | None
    first_step: int | None
    samples_known: bool = False
    resumes: Sequence[tuple[str, int]] = ()
    """(job, step) of every attempt that resumed from an earlier one."""

    @property
    def when(self) -> When | None:
        """Point at which the jobs begin to differ; None while all values are the same."""
        if self.samples is not None and (self.metric is None or self.samples.step <= self.metric.step):
            return "samples"
        if self.metric is None:
            return None
        if self.first_step is None or self.metric.step <= self.first_step:
            return "first" if self.metric.step <= 1 else "early"
        return "second" if self.metric.step == self.first_step + 1 else "later"


def causes(found: Evidence) -> list[Cause]:
    """Return likely causes, the most likely first. If nothing that differs can have an effect so early, name chance."""
    when = found.when
    if when is None:
        return []
    ranked = sorted(((_score(kind, c, found, when), c, kind) for c, kind in _candidates(found)), key=lambda r: -r[0])
    made = [
        Cause(what=_what(c), why=_why(score, kind, len(ranked), when, found), section=c.section, name=c.name)
        for score, c, kind in ranked
    ]
    resumed = _resumed(found, when)
    if not resumed and (not ranked or ranked[0][0] < UNLIKELY):
        resumed = [_chance(found, when, known=bool(ranked))]
    return [*resumed, *made][:MOST_CAUSES]


def kind_of(change: Change) -> Kind:
    if change.section == "code":
        return "package" if change.name.startswith("requirements") else "code"
    if change.section == "seed":
        return "seed"
    if change.section == "environment":
        return "package"
    if change.section == "hardware":
        return "workers" if change.name == "workers" else "machine"
    if change.section == "data":
        if change.name.startswith("global batch"):
            return "batch"
        return "start" if change.name == "starts from" else "data"
    words = "_".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", change.name)).lower()
    return next((k for k, pattern in _KINDS if re.search(rf"(?:^|_)(?:{pattern})(?:$|_)", words)), "other")


def _candidates(found: Evidence) -> list[tuple[Change, Kind]]:
    """Return each possible cause once: if a change appears in several places, the one that the user typed."""
    made = [
        Change(section="code", name=file.path, first=None, second=file.note or file.kind)
        for file in found.files
        if file.matters
    ]
    kinds = [(c, kind_of(c)) for c in [*found.changes, *made] if c.matters]
    typed = {kind for c, kind in kinds if c.section in ("settings", "hardware")}
    pushed = any(c.name.startswith("dataset ") for c, _ in kinds)
    installed = any(c.section == "environment" for c, _ in kinds)
    arguments = {_bare(c.name) for c, _ in kinds if c.name.startswith("-")}

    def is_echo(change: Change, kind: Kind) -> bool:
        if change.name.startswith("config "):
            return _bare(change.name) in arguments
        if change.section == "seed" or change.name.startswith("global batch"):
            return kind in typed or (kind == "batch" and "workers" in typed)
        if change.section == "data" and change.name.startswith("samples"):
            return pushed
        return installed and change.section == "code" and kind == "package"

    return [(c, kind) for c, kind in kinds if not is_echo(c, kind)]


def _bare(name: str) -> str:
    return name.removeprefix("config ").lstrip("-").replace("-", "_")


def _score(kind: Kind, change: Change, found: Evidence, when: When) -> float:
    score: float = _LIKELY[when][kind]
    small = found.metric is not None and found.metric.relative is not None and found.metric.relative < TINY
    if small and when != "samples":
        score += 45 if kind in _NUMERIC else -20
    # A script is a more likely cause than another file of the source.
    return score - (5 if change.section == "code" and not change.name.endswith((".py", ".sh")) else 0)


def _what(change: Change) -> str:
    if change.section == "code":
        return f"{change.name} ({change.second})"
    return f"{change.name}: {_display_value(change.first)} → {_display_value(change.second)}"


def _display_value(value: str | None) -> str:
    return "not given" if value is None else value or "given"


def _why(score: float, kind: Kind, count: int, when: When, found: Evidence) -> str:
    if score < UNLIKELY:
        return f"it differs, but hardly explains this: {_SAID[kind]}"
    alone = "the only relevant difference; " if count == 1 else ""
    return f"{alone}{_SAID[kind]}; {_seen(when, found)}"


def _seen(when: When, found: Evidence) -> str:
    if when == "samples" and found.samples is not None:
        return f"different samples are used from step {found.samples.step} on"
    metric = found.metric
    assert metric is not None  # noqa: S101
    same = ", on the same samples" if found.samples_known else ""
    if when == "first":
        return f"{metric.name} differs from step {metric.step} on, before any update{same}"
    if when == "early":
        return f"{metric.name} differs from step {metric.step} on, the first that both have reported{same}"
    if when == "second":
        return f"{metric.name} differs from step {metric.step} on, right after the first update{same}"
    return f"{metric.name} is the same until step {metric.step - 1}"


def _resumed(found: Evidence, when: When) -> list[Cause]:
    """Return the cause that one job resumed from a checkpoint at the step where they begin to differ, if it did."""
    step = found.samples.step if when == "samples" and found.samples else found.metric.step if found.metric else 0
    near = [(job, at) for job, at in found.resumes if at <= step <= at + 1]
    if when in ("first", "early", "second") or not near:
        return []
    job, at = near[0]
    why = f"{_seen(when, found)}, and there it resumed: part of its state was not saved or not loaded"
    return [Cause(what=f"{job} resumed from a checkpoint at step {at}", why=why, section="settings", name="resume")]


def _chance(found: Evidence, when: When, *, known: bool) -> Cause:
    missing = "no known difference can have an effect there" if known else "no difference between them is known"
    metric = found.metric
    if metric is not None and metric.relative is not None and metric.relative < TINY:
        what = "Kernels that are not deterministic: torch.use_deterministic_algorithms(True) finds them"
    else:
        what = "Chance: random numbers without a seed, or an input that is not part of the job"
    return Cause(what=what, why=f"{missing}; {_seen(when, found)}", section="seed", name="chance")
