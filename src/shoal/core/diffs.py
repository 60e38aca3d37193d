"""What two jobs do not have in common, on the wire: what was given to them, where their numbers part, and the likely cause."""

from __future__ import annotations

from typing import Literal

from shoal.core.metrics import Value
from shoal.core.schema import View

Section = Literal["code", "settings", "data", "environment", "hardware", "seed"]
SECTIONS: tuple[Section, ...] = ("code", "settings", "data", "environment", "hardware", "seed")


class Change(View):
    """One thing that is not the same in both. Values of secrets are never told, nor are values whose name says what they are."""

    section: Section
    name: str
    first: str | None
    """None where the first job has no such thing."""
    second: str | None
    matters: bool = True
    """Whether it can change a number: a priority or a comment cannot."""


class FileChange(View):
    path: str
    kind: Literal["added", "removed", "changed"]
    diff: str = ""
    """Unified; empty where the file is not text, or too long to be shown."""
    note: str | None = None
    matters: bool = True


class MetricDifference(View):
    """The first step at which a metric differs."""

    name: str
    step: int
    first: Value
    second: Value
    relative: float | None
    """By how much, of the larger one; None where one is no number."""


class SampleDifference(View):
    """The first step that used other samples."""

    loader: str
    step: int
    first: list[int]
    """Samples of that step, the first few."""
    second: list[int]


class Cause(View):
    what: str
    """`--lr: 0.1 → 0.2`"""
    why: str
    """Why this is likely the cause."""
    section: Section
    name: str


class JobDiff(View):
    first: str
    second: str
    """Their names."""
    changes: list[Change]
    files: list[FileChange]
    metric: MetricDifference | None
    samples: SampleDifference | None
    samples_known: bool
    """Whether both told which samples each step used."""
    first_step: int | None
    """The first step that both have made."""
    last_step: int | None
    causes: list[Cause]
    """The likeliest first; empty where their numbers are the same."""
    notes: list[str]
