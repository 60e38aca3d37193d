"""Two runs' numbers side by side: which metrics can tell runs apart, and the first step at which one does."""

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


@dataclass(frozen=True, slots=True)
class Difference:
    step: int
    name: str
    first: Any
    second: Any

    @property
    def words(self) -> str:
        return f"{self.name} at step {self.step}: {self.first!r} and {self.second!r}"


def is_of_time(name: str) -> bool:
    """A metric that no two runs have in common, by its name: seconds, samples per second, memory."""
    return bool(_OF_TIME.search(name))


def by_weight(names: Sequence[str]) -> list[str]:
    """Losses first: of what differs at one step, they say most."""
    return sorted(names, key=lambda name: ("loss" not in name.lower(), name))


def first_difference(
    first: Mapping[str, Steps], second: Mapping[str, Steps], names: Sequence[str], low: float = 0, high: float = 2**63
) -> Difference | None:
    """The first step both have made, from `low` to `high`, at which one of these metrics differs in any bit."""
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
