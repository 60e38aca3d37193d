"""Differences between two jobs on the wire: inputs, the first step at which their numbers differ, and the likely cause."""

from __future__ import annotations

from typing import Literal

from shoal.core.metrics import Value
from shoal.core.schema import View

Section = Literal["code", "settings", "data", "environment", "hardware", "seed"]
SECTIONS: tuple[Section, ...] = ("code", "settings", "data", "environment", "hardware", "seed")


class Change(View):
    """One difference between the two jobs.

    Values of secrets, and of variables whose names suggest a secret, are never shown.
    """

    section: Section
    name: str
    first: str | None
    """Value in the first job; None if it has none."""
    second: str | None
    """Value in the second job; None if it has none."""
    matters: bool = True
    """True if the difference can change a result. A priority or a comment cannot."""


class FileChange(View):
    """A file that differs between the sources of the two jobs."""

    path: str
    kind: Literal["added", "removed", "changed"]
    diff: str = ""
    """Unified diff; empty if the file is not text or is too long to show."""
    note: str | None = None
    matters: bool = True


class MetricDifference(View):
    """The first step at which a metric differs."""

    name: str
    step: int
    first: Value
    second: Value
    relative: float | None
    """Size of the difference relative to the larger value; None if one of the values is not a number."""


class SampleDifference(View):
    """The first step at which the two jobs used different samples."""

    loader: str
    step: int
    first: list[int]
    """Samples the first job used at that step (only the first few)."""
    second: list[int]
    """Samples the second job used at that step (only the first few)."""


class Cause(View):
    """A difference that may explain why the results differ."""

    what: str
    """Short form of the difference: `--lr: 0.1 → 0.2`"""
    why: str
    """Explanation why this is a likely cause."""
    section: Section
    name: str


class JobDiff(View):
    """All differences between two jobs."""

    first: str
    second: str
    """Names of the two jobs."""
    changes: list[Change]
    files: list[FileChange]
    metric: MetricDifference | None
    samples: SampleDifference | None
    samples_known: bool
    """True if both jobs recorded which samples each step used."""
    first_step: int | None
    """First step that both jobs have made."""
    last_step: int | None
    """Last step that both jobs have made."""
    causes: list[Cause]
    """Likely causes, the most likely first; empty if the numbers are the same."""
    notes: list[str]
