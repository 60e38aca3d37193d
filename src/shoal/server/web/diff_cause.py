"""Why two jobs' numbers part, as far as what they do not have in common, and the step at which they part, can tell.

A pure decision. It rests on when a difference can first show: the loss of a first step knows of data, weights and code, but
of no learning rate, since nothing has been learned before it.
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
"""`early`: at the first step they have told of, which is not the first that was made."""
MOST_CAUSES = 5
UNLIKELY = 20
"""Scores below this are of what cannot well show where the numbers part."""
TINY = 1e-4
"""Differences below this part of a value are those of another order of summation."""

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
    "seed": "another seed draws other weights, samples and dropout",
    "batch": "it decides which samples make up a step",
    "data": "the samples hold something else",
    "start": "they begin from different weights",
    "optimizer": "it shows in the loss once the first update was made with it",
    "schedule": "it changes what an update does as time goes by",
    "model": "the model itself is another one",
    "code": "the script does something else",
    "package": "another version computes, or draws, differently",
    "workers": "the work is dealt to another number of workers",
    "machine": "other hardware adds up in another order",
    "naming": "it says where things go, and seldom changes a number",
    "other": "the script is told something else",
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
    """(job, step) of every attempt that went on from an earlier one."""

    @property
    def when(self) -> When | None:
        """None while their numbers are the same."""
        if self.samples is not None and (self.metric is None or self.samples.step <= self.metric.step):
            return "samples"
        if self.metric is None:
            return None
        if self.first_step is None or self.metric.step <= self.first_step:
            return "first" if self.metric.step <= 1 else "early"
        return "second" if self.metric.step == self.first_step + 1 else "later"


def causes(found: Evidence) -> list[Cause]:
    """The likeliest first. Where nothing that differs can show so early, chance is."""
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
    """Each cause once: of one thing told in several ways, the one a person has typed."""
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
    # A file that is run says more than one beside it, and a name in plain sight more than a package among hundreds.
    return score - (5 if change.section == "code" and not change.name.endswith((".py", ".sh")) else 0)


def _what(change: Change) -> str:
    if change.section == "code":
        return f"{change.name} ({change.second})"
    return f"{change.name}: {_shown(change.first)} → {_shown(change.second)}"


def _shown(value: str | None) -> str:
    return "not given" if value is None else value or "given"


def _why(score: float, kind: Kind, count: int, when: When, found: Evidence) -> str:
    if score < UNLIKELY:
        return f"it differs, but hardly explains this: {_SAID[kind]}"
    alone = "the only thing that differs and can matter; " if count == 1 else ""
    return f"{alone}{_SAID[kind]}; {_seen(when, found)}"


def _seen(when: When, found: Evidence) -> str:
    if when == "samples" and found.samples is not None:
        return f"other samples are used from step {found.samples.step} on"
    metric = found.metric
    assert metric is not None  # noqa: S101
    same = ", on the same samples" if found.samples_known else ""
    if when == "first":
        return f"{metric.name} differs from step {metric.step} on, before any update{same}"
    if when == "early":
        return f"{metric.name} differs from step {metric.step} on, the first that both have told of{same}"
    if when == "second":
        return f"{metric.name} differs from step {metric.step} on, right after the first update{same}"
    return f"{metric.name} is the same until step {metric.step - 1}"


def _resumed(found: Evidence, when: When) -> list[Cause]:
    """Where they part is where one of them went on from a checkpoint."""
    step = found.samples.step if when == "samples" and found.samples else found.metric.step if found.metric else 0
    near = [(job, at) for job, at in found.resumes if at <= step <= at + 1]
    if when in ("first", "early", "second") or not near:
        return []
    job, at = near[0]
    why = f"{_seen(when, found)}, and there it resumed: something it keeps was not saved or not loaded"
    return [Cause(what=f"{job} went on from a checkpoint at step {at}", why=why, section="settings", name="resume")]


def _chance(found: Evidence, when: When, *, known: bool) -> Cause:
    lacking = "nothing that differs can show there" if known else "nothing that is known of them differs"
    metric = found.metric
    if metric is not None and metric.relative is not None and metric.relative < TINY:
        what = "Kernels that are not deterministic: torch.use_deterministic_algorithms(True) finds them"
    else:
        what = "Chance: something is drawn without a seed, or read that is not part of the job"
    return Cause(what=what, why=f"{lacking}; {_seen(when, found)}", section="seed", name="chance")
