"""Compare the metrics of two runs: which metrics can be compared, and the first step at which one differs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Steps = Mapping[int, Any]
"""Step → value."""

_OF_TIME = re.compile(
    r"(?:^|[_/. -])(?:time|seconds?|secs?|ms|elapsed|eta|speed|throughput|mfu|mem(?:ory)?|(?:\w+_)?per_s(?:ec(?:ond)?)?)(?:$|[_/. -])",
    re.IGNORECASE,
)
"""Names of metrics about time, speed or memory."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One metric at the first step at which its values differ."""

    step: int
    name: str
    first: Any
    second: Any

    @property
    def words(self) -> str:
        return f"{self.name} at step {self.step}: {self.first!r} and {self.second!r}"


def is_of_time(name: str) -> bool:
    """Return whether a metric's name says that it differs in every run: seconds, samples per second, memory."""
    return bool(_OF_TIME.search(name))


def by_weight(names: Sequence[str]) -> list[str]:
    """Sort metric names with losses first: of the metrics that differ at a step, a loss says most."""
    return sorted(names, key=lambda name: ("loss" not in name.lower(), name))


def first_difference(
    first: Mapping[str, Steps], second: Mapping[str, Steps], names: Sequence[str], low: float = 0, high: float = 2**63
) -> Difference | None:
    """Return the first step from `low` to `high`, made by both runs, at which one of the metrics differs in any bit."""
    found = [
        (step, number)
        for number, name in enumerate(names)
        for step, value in second[name].items()
        if low <= step <= high and step in first[name] and first[name][step] != value
    ]
    if not found:
        return None
    step, number = min(found)
    name = names[number]
    return Difference(step, name, first[name][step], second[name][step])
