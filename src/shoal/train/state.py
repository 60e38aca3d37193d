"""Progress of a training, saved with every checkpoint."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, overload

torch: Any = import_module("torch")


class Series(Sequence[tuple[int, float]]):
    """Sequence of (samples seen, value) of every step, stored compactly: a million take 16 MB."""

    def __init__(self) -> None:
        self._numbers = array("d")

    def append(self, seen: int, value: float) -> None:
        self._numbers.extend((seen, value))

    def __len__(self) -> int:
        return len(self._numbers) // 2

    @overload
    def __getitem__(self, at: int) -> tuple[int, float]: ...
    @overload
    def __getitem__(self, at: slice) -> list[tuple[int, float]]: ...
    def __getitem__(self, at: int | slice) -> tuple[int, float] | list[tuple[int, float]]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        first = 2 * (at % len(self))
        return int(self._numbers[first]), self._numbers[first + 1]

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return iter(self[:])

    def to_tensor(self) -> Any:
        return torch.tensor(self._numbers, dtype=torch.float64)

    def from_tensor(self, numbers: Any) -> None:
        self._numbers = array("d", numbers.tolist())


MOST_FIGURES = 32
"""Names of figures whose curves are kept."""


class State:
    """Progress of a training. It is the same on every worker."""

    def __init__(self) -> None:
        self.steps = 0
        self.seen = 0
        """Samples seen, over all workers."""
        self.epoch = 0
        self.best: float | None = None
        self.best_step: int | None = None
        self.since_best = 0
        """Number of evaluations since the best one."""
        self.last_evaluated = 0
        """Samples seen at the last evaluation."""
        self.losses = Series()
        self.figures: dict[str, Series] = {}
        """Figures that train_batch returned, by name: of this worker, and after a resume of the one that saved."""
        self.evaluations: list[tuple[int, dict[str, float]]] = []
        """All evaluations, as (samples seen, values)."""

    def note_figures(self, figures: Mapping[str, float]) -> None:
        """Record the figures of a step; at most MOST_FIGURES names are kept."""
        for name, value in figures.items():
            if name in self.figures or len(self.figures) < MOST_FIGURES:
                self.figures.setdefault(name, Series()).append(self.seen, value)

    def evaluated(self, values: dict[str, float], step: int) -> bool:
        """Record an evaluation; return whether it is the best so far."""
        self.last_evaluated = self.seen
        self.evaluations.append((self.seen, values))
        if self.best is not None and judged(values) >= self.best:
            self.since_best += 1
            return False
        self.best, self.best_step, self.since_best = judged(values), step, 0
        return True

    def state_dict(self) -> dict[str, Any]:
        figures = {name: series.to_tensor() for name, series in self.figures.items()}
        saved = {"losses": self.losses.to_tensor(), "figures": figures, "evaluations": list(self.evaluations)}
        return {**vars(self), **saved}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        for name in ("steps", "seen", "epoch", "best", "best_step", "since_best", "last_evaluated"):
            setattr(self, name, saved[name])
        self.losses.from_tensor(saved["losses"])
        self.figures = {}
        for name, numbers in saved.get("figures", {}).items():
            self.figures.setdefault(name, Series()).from_tensor(numbers)
        self.evaluations = [(seen, dict(values)) for seen, values in saved["evaluations"]]


def judged(values: Mapping[str, float]) -> float:
    """Return the value that ranks models: `error`, else `loss`, else the first. Smaller is better."""
    for name in ("error", "loss"):
        if name in values:
            return values[name]
    return next(iter(values.values()))
