"""Sweeps on the wire: the values of each parameter, the search method, and the metric that ranks the trials."""

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
"""Parameter → value, as JSON."""


class Choice(Schema):
    """A list of values. Parameters of one `group` are varied together; all others are combined with each other."""

    kind: Literal["choice"] = "choice"
    values: list[JsonValue] = Field(min_length=1, max_length=10_000)
    group: str | None = None


class Between(Schema):
    """A number from `low` to `high`, both included."""

    kind: Literal["between"] = "between"
    low: float
    high: float
    log: bool = False
    """Search on a logarithmic scale."""
    whole: bool = False
    """Whole numbers only."""

    @model_validator(mode="after")
    def _range(self) -> Between:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(
                f"{self.low:g}:{self.high:g} is not a range: the first number must be smaller than the second"
            )
        if self.log and self.low <= 0:
            raise ValueError(
                f"{self.low:g}:{self.high:g} cannot be searched on a logarithmic scale: it must begin above 0"
            )
        return self


Axis = Annotated[Choice | Between, Field(discriminator="kind")]


class SweepSpec(Schema):
    """The complete description of a sweep, sufficient to run it again."""

    name: str
    job: JobSpec
    """Job that every trial runs. The trial adds its number to the name and its parameters to the arguments."""
    space: dict[str, Axis] = Field(min_length=1, max_length=1_000)
    search: Search = "grid"
    metric: str = Field(default="eval/loss", min_length=1, max_length=200)
    direction: Direction = "min"
    trials: int | None = Field(default=None, ge=1, le=MAX_TRIALS)
    """Number of trials; None for a grid means all combinations."""
    parallel: int = Field(default=1, ge=1, le=10_000)
    """Number of trials at the same time."""
    seed: int = Field(default=0, ge=0)
    budget: BudgetText | None = None
    """Limit for all trials together; the sweep is stopped when it is used up. Money ('5.00') or slot time ('2h')."""
    first_rung: int = Field(default=1, ge=1)
    """Number of reports of the metric after which asha and hyperband first compare a trial with others."""
    factor: int = Field(default=3, ge=2, le=64)
    """Reduction factor: the best 1/factor of the trials at each rung continue."""

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
            raise ValueError(f"search by {self.search} does not end by itself: say how many trials")
        lengths: dict[str, dict[str, int]] = {}
        for name, axis in self.space.items():
            if isinstance(axis, Choice) and axis.group is not None:
                lengths.setdefault(axis.group, {})[name] = len(axis.values)
        for group, of in lengths.items():
            if len(set(of.values())) > 1:
                counts = ", ".join(f"{name} has {n}" for name, n in of.items())
                raise ValueError(
                    f"the parameters of group {group!r} are varied together and need equally many values, but {counts}"
                )
        return self


class TrialState(StrEnum):
    """State of a trial."""

    RUNNING = "running"
    """Its job is waiting or running."""
    DONE = "done"
    PRUNED = "pruned"
    """Stopped early because others were better at that point."""
    REUSED = "reused"
    """The same trial was run before; its result is used."""
    SKIPPED = "skipped"
    """The script ended the trial with `shoal.skip_trial`, for example because the model would be too large."""
    FAILED = "failed"
    STOPPED = "stopped"


class SweepState(StrEnum):
    """State of a sweep."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    """Every trial failed, or no further trial could be submitted; `reason` says why."""


class TrialView(View):
    """A row of a sweep's table."""

    number: int
    params: Params
    state: TrialState
    result: float | None
    """Best value of the metric so far."""
    reports: int
    """Number of reports of the metric."""
    step: int | None
    job: str | None
    """Name of its job; for a reused trial, of the earlier job."""
    job_id: str | None
    job_status: JobState | None
    reason: str | None
    seconds: float | None
    """Run time in seconds."""
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
    """Largest number of trials there will be."""
    counts: dict[TrialState, int]
    best: TrialView | None
    reason: str | None
    eta_s: float | None
    """Estimated seconds left at the present speed; None while unknown."""
    created_by: str
    created_at: Utc
    ended_at: Utc | None


class SweepView(SweepSummary):
    """A sweep with all details."""

    spec: SweepSpec
    importance: dict[str, float]
    """Parameter → share of the differences between results that it explains, summing to 1; empty while there is too little
    data."""
    slot_seconds: float
    """Slot time used by all trials so far, in seconds."""
    cost: float | None
    """Cost of the slot time; None if slots have no price."""
