"""Where the workers of a job are at one moment, on the wire: what agents tell of each rank, and what people are shown."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shoal.core.schema import Schema, Utc, View

MOST_FRAMES = 40
Frame = Annotated[str, Field(max_length=500)]


class RankStack(Schema):
    """One worker's main thread."""

    rank: int = Field(ge=0)
    inside: str = Field(default="", max_length=200)
    """The function it is in: its own, or the one of a library that its own code has called."""
    at: str = Field(default="", max_length=500)
    """The line of its own code, such as train.py:41."""
    waits: bool = False
    """`inside` is a library's, and `at` the line that called it."""
    note: str = Field(default="", max_length=500)
    """What is known of it where there is no Python stack."""
    frames: list[Frame] = Field(default=[], max_length=MOST_FRAMES)
    """Innermost first."""
    stopped: bool = False
    """Stopped by a signal, or frozen by its control group: it cannot go on by itself. Not one that a debugger holds."""
    cpu_s: float | None = Field(default=None, ge=0)
    """CPU seconds used so far by its process and all below it; None where that is not known."""
    moved: int | None = Field(default=None, ge=0)
    """Bytes these have read and written so far."""


class StacksReport(Schema):
    """What an agent found of the ranks of its node."""

    order: str = Field(max_length=64)
    ranks: list[RankStack] = Field(max_length=1_024)


class StackGroup(View):
    """Ranks that are at the same place."""

    ranks: list[int]
    where: str
    frames: list[str]
    """Of the first of them, innermost first."""


class StacksView(View):
    order: str
    """Which request this answers."""
    at: Utc
    attempt: int
    text: str
    groups: list[StackGroup]
    complete: bool
    """Every node has answered."""


class StacksAsked(View):
    order: str
