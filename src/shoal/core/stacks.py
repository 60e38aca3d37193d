"""Stacks of a job's workers at one moment, on the wire: reports of agents for each rank, and the summary shown to people."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shoal.core.schema import Schema, Utc, View

MOST_FRAMES = 40
Frame = Annotated[str, Field(max_length=500)]


class RankStack(Schema):
    """Stack of one worker's main thread."""

    rank: int = Field(ge=0)
    inside: str = Field(default="", max_length=200)
    """Function the worker is in: one of its own code, or the library function that its own code has called."""
    at: str = Field(default="", max_length=500)
    """Line of its own code, such as train.py:41."""
    waits: bool = False
    """True if `inside` is a library function and `at` the line that called it."""
    note: str = Field(default="", max_length=500)
    """Information about the worker if it has no Python stack."""
    frames: list[Frame] = Field(default=[], max_length=MOST_FRAMES)
    """Frames of the stack, innermost first."""
    stopped: bool = False
    """True if the worker is stopped by a signal or frozen by its control group and cannot continue by itself. False if a
    debugger holds it."""
    cpu_s: float | None = Field(default=None, ge=0)
    """CPU seconds used so far by the process and its descendants; None if unknown."""
    moved: int | None = Field(default=None, ge=0)
    """Bytes read and written so far by the process and its descendants."""


class StacksReport(Schema):
    """An agent's report of the ranks of its node."""

    order: str = Field(max_length=64)
    """Id of the request this answers."""
    ranks: list[RankStack] = Field(max_length=1_024)


class StackGroup(View):
    """Ranks that are at the same place in the code."""

    ranks: list[int]
    where: str
    frames: list[str]
    """Frames of the group's first rank, innermost first."""


class StacksView(View):
    """Stacks of all ranks of a job."""

    order: str
    """Id of the request this answers."""
    at: Utc
    attempt: int
    text: str
    groups: list[StackGroup]
    complete: bool
    """True if every node has answered."""


class StacksRequested(View):
    """A request for stacks that was sent to the agents."""

    order: str
