"""The learning rate as a share of its full height, by how many samples were seen. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from shoal.train.params import Params


class Schedule(Protocol):
    def __call__(self, seen: int) -> float: ...


class Linear(NamedTuple):
    """Up over the warm-up, then down in a straight line to `ending` at the target; never below."""

    target: int
    warmup: float = 0.0
    ending: float = 1e-5

    def __call__(self, seen: int) -> float:
        return _risen(self, seen, lambda left: self.ending + (1 - self.ending) * left)


class Cosine(NamedTuple):
    """Up over the warm-up, then down along half a cosine."""

    target: int
    warmup: float = 0.0
    ending: float = 1e-5

    def __call__(self, seen: int) -> float:
        fallen = (1 - self.ending) * 0.5
        return _risen(self, seen, lambda left: self.ending + fallen * (1 - math.cos(math.pi * left)))


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
        return _risen(self, seen, lambda left: 1.0)


def make(params: Params, *, target: int, epoch_samples: Callable[[], int]) -> Schedule:
    """As the parameters say."""
    if params.decay == "stepwise":
        return Stepwise(epoch_samples(), params.stepwise_ratio, params.stepwise_epochs)
    if params.decay == "cosine":
        return Cosine(target, params.warmup, params.ending_lr_ratio)
    if params.decay == "none":
        return Constant(target, params.warmup)
    return Linear(target, params.warmup, params.ending_lr_ratio)


def _risen(schedule: Linear | Cosine | Constant, seen: int, after: Callable[[float], float]) -> float:
    """Up over the warm-up; then `after` of the share of the way that is left."""
    warm = int(schedule.warmup * schedule.target)
    if seen <= warm and warm > 0:
        return seen / warm
    return after(max(schedule.target - seen, 0) / max(1, schedule.target - warm))
