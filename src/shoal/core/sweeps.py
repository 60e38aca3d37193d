"""What a sweep looks for: the values each parameter may take, how they are searched, and what tells a good trial."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, field_validator, model_validator

from shoal.core.jobs import JobSpec
from shoal.core.names import check_name
from shoal.core.schema import Schema

Search = Literal["grid", "random", "tpe", "asha", "hyperband"]
Direction = Literal["min", "max"]
MAX_TRIALS = 100_000


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


Params = dict[str, Any]
"""Name → value, as JSON."""
