"""The learning rate as a share of its full height, by how many samples were seen. Pure."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol


class Schedule(Protocol):
    def __call__(self, seen: int) -> float: ...


class Linear(NamedTuple):
    """Up over the warm-up, then down in a straight line to `ending` at the target; never below."""

    target: int
    warmup: float = 0.0
    ending: float = 1e-5

    def __call__(self, seen: int) -> float:
        warm = int(self.warmup * self.target)
        if seen <= warm and warm > 0:
            return seen / warm
        left = max(self.target - seen, 0) / max(1, self.target - warm)
        return self.ending + (1 - self.ending) * left


class Cosine(NamedTuple):
    """Up over the warm-up, then down along half a cosine."""

    target: int
    warmup: float = 0.0
    ending: float = 1e-5

    def __call__(self, seen: int) -> float:
        warm = int(self.warmup * self.target)
        if seen <= warm and warm > 0:
            return seen / warm
        done = min(1.0, (seen - warm) / max(1, self.target - warm))
        return self.ending + (1 - self.ending) * 0.5 * (1 + math.cos(math.pi * done))


class Stepwise(NamedTuple):
    """Times `ratio` after every `epochs` epochs."""

    epoch_samples: int
    ratio: float = 0.1
    epochs: int = 30

    def __call__(self, seen: int) -> float:
        return float(self.ratio ** (seen // self.epoch_samples // self.epochs))


class Constant(NamedTuple):
    """Up over the warm-up, and there it stays."""

    target: int
    warmup: float = 0.0

    def __call__(self, seen: int) -> float:
        warm = int(self.warmup * self.target)
        return seen / warm if seen <= warm and warm > 0 else 1.0
