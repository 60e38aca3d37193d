"""Random generators and first weights of the runs that verify-resume compares, as reported at the start of each attempt."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.core.errors import JobFailed
from shoal.sdk.verify import MARK, PREPARED

DRAWS_AT_THE_START = (
    "The results are equal only if the script is restarted with the same random numbers. It draws random numbers before "
    "run.prepare (for data, or a random split), which differ after a real restart. Set a seed: shoal.init(seed=1), "
    "or torch.manual_seed(1) as the first line."
)


@dataclass(frozen=True, slots=True)
class Start:
    """State of an attempt at its first `run.prepare`, as hashes."""

    generators: Mapping[str, str] = field(default_factory=dict)
    weights: str | None = None


def read_starts(lines: Iterable[str]) -> list[Start]:
    """Return the starts of all attempts, in order."""
    found = []
    for line in lines:
        _, mark, text = line.partition(MARK)
        told: dict[str, Any] = json.loads(text) if mark else {}
        if told.get("event") == PREPARED:
            found.append(Start(told["generators"], told["weights"]))
    return found


def check_same_weights(whole: Sequence[Start], broken: Sequence[Start]) -> None:
    """Raise JobFailed if the two runs began with different models: no comparison can then say anything about the resume."""
    if whole and broken and whole[0].weights != broken[0].weights:
        raise JobFailed(
            "The two copies did not start with the same weights, so the resume cannot be verified.",
            hint="Set a seed before the model is created: torch.manual_seed(1) as the script's first line.",
        )


def uncontrolled(whole: Sequence[Start], broken: Sequence[Start]) -> list[str]:
    """Return the generators that were not the same in both runs from the beginning."""
    return _different(whole[0], broken[0]) if whole and broken else []


def unseeded(broken: Sequence[Start]) -> list[str]:
    """Return the generators that the script does not seed: those whose state differs from attempt to attempt."""
    return _different(broken[0], broken[-1]) if len(broken) > 1 else []


def remarks(left_out: Sequence[str], not_seeded: Sequence[str]) -> list[str]:
    """Return remarks for the user that are not problems of the resume."""
    found = []
    if left_out:
        found.append(f"Not compared, as they were never seeded and started differently: {_named(left_out)}.")
    if not_seeded:
        found.append(
            f"The script sets no seed for {_named(not_seeded)}; both copies were started with the same random numbers."
        )
    return found


def _different(first: Start, second: Start) -> list[str]:
    names = first.generators.keys() & second.generators.keys()
    return sorted(name for name in names if first.generators[name] != second.generators[name])


def _named(generators: Sequence[str]) -> str:
    words = {"python": "Python's random", "numpy": "numpy.random", "torch": "torch"}
    return ", ".join(words.get(name, name) for name in generators)
