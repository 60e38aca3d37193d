"""What a sweep looks for: the values each parameter may take, how they are searched, and what tells a good trial."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, field_validator, model_validator

from shoal.core.jobs import BudgetText, JobSpec
from shoal.core.names import check_name
from shoal.core.schema import Schema, Utc, View
from shoal.core.states import JobState

Search = Literal["grid", "random", "tpe", "asha", "hyperband"]
Direction = Literal["min", "max"]
TrialOrder = Literal["number", "result"]
MAX_TRIALS = 100_000
Params = dict[str, Any]
"""Name → value, as JSON."""


class Choice(Schema):
    """One of these values. Parameters of one `group` go hand in hand; all others are combined with each other."""

    kind: Literal["choice"] = "choice"
    values: list[JsonValue] = Field(min_length=1, max_length=10_000)
    group: str | None = None


class Between(Schema):
    """A number from low to high, both included."""

    kind: Literal["between"] = "between"
    low: float
    high: float
    log: bool = False
    """Whether its order of magnitude is searched, not its value."""
    whole: bool = False
    """Whole numbers only."""

    @model_validator(mode="after")
    def _range(self) -> Between:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"{self.low:g}:{self.high:g} is no range: the first number has to be the smaller")
        if self.log and self.low <= 0:
            raise ValueError(f"{self.low:g}:{self.high:g} cannot be searched by magnitude: it has to begin above 0")
        return self


Axis = Annotated[Choice | Between, Field(discriminator="kind")]


class SweepSpec(Schema):
    """Everything needed to run a sweep again."""

    name: str
    job: JobSpec
    """What every trial runs; its name and arguments are completed by those of the trial."""
    space: dict[str, Axis] = Field(min_length=1, max_length=1_000)
    search: Search = "grid"
    metric: str = Field(default="eval/loss", min_length=1, max_length=200)
    direction: Direction = "min"
    trials: int | None = Field(default=None, ge=1, le=MAX_TRIALS)
    """How many; None for a grid means all of it."""
    parallel: int = Field(default=1, ge=1, le=10_000)
    """Trials at once."""
    seed: int = Field(default=0, ge=0)
    budget: BudgetText | None = None
    """What all trials together may use, or else the sweep is stopped: money ('5.00'), or time of slots ('2h')."""
    first_rung: int = Field(default=1, ge=1)
    """Reports of the metric a trial may make before asha and hyperband first compare it."""
    factor: int = Field(default=3, ge=2, le=64)
    """Of those that came to a rung, one in so many goes on."""

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return check_name(value, "sweep name")

    @model_validator(mode="after")
    def _fits(self) -> SweepSpec:
        if self.search == "grid":
            ranges = [name for name, axis in self.space.items() if isinstance(axis, Between)]
            if ranges:
                raise ValueError(f"a grid needs single values: give {', '.join(ranges)} as a list, or search by tpe")
        elif self.trials is None:
            raise ValueError(f"search by {self.search} has no end of its own: say how many trials")
        lengths: dict[str, dict[str, int]] = {}
        for name, axis in self.space.items():
            if isinstance(axis, Choice) and axis.group is not None:
                lengths.setdefault(axis.group, {})[name] = len(axis.values)
        for group, of in lengths.items():
            if len(set(of.values())) > 1:
                told = ", ".join(f"{name} has {n}" for name, n in of.items())
                raise ValueError(f"the parameters of group {group!r} go hand in hand, but {told} values")
        return self


class TrialState(StrEnum):
    RUNNING = "running"
    """Its job waits or runs."""
    DONE = "done"
    PRUNED = "pruned"
    """Ended early, as others were better by then."""
    REUSED = "reused"
    """The same trial had been run before; its result counts."""
    SKIPPED = "skipped"
    """Not run: the script said that the model would be too large."""
    FAILED = "failed"
    STOPPED = "stopped"


class SweepState(StrEnum):
    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    """Every trial failed, or no further one could be submitted; `reason` says why."""


class TrialView(View):
    """A row of a sweep's table."""

    number: int
    params: Params
    state: TrialState
    result: float | None
    """The best value of the metric so far."""
    reports: int
    """How often the metric was told."""
    step: int | None
    job: str | None
    """Name of its job; of the earlier one if it was reused."""
    job_id: str | None
    job_status: JobState | None
    reason: str | None
    seconds: float | None
    """Of running."""
    created_at: Utc
    ended_at: Utc | None


class SweepSummary(View):
    """A row of `sweep list`."""

    id: str
    name: str
    status: SweepState
    stop_requested: bool = False
    search: Search
    metric: str
    direction: Direction
    trials: int
    """How many there will be at most."""
    counts: dict[TrialState, int]
    best: TrialView | None
    reason: str | None
    eta_s: float | None
    """Seconds left at the present pace; None while unknown."""
    created_by: str
    created_at: Utc
    ended_at: Utc | None


class SweepView(SweepSummary):
    spec: SweepSpec
    importance: dict[str, float]
    """Parameter → its share of the differences between results, summing to 1; empty while too little is known."""
    slot_seconds: float
    """Used by all trials so far."""
    cost: float | None
    """Of those, if slots have a price."""
