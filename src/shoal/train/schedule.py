"""Learning-rate schedules: the rate as a share of the full one, by samples seen. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from shoal.train.params import Params


class Schedule(Protocol):
    """Function from samples seen to a share of the full learning rate."""

    def __call__(self, seen: int) -> float: ...


class Linear(NamedTuple):
    """Linear rise over the warm-up, then linear decay to `ending` at the target; never below."""

    target: int
    warmup: float = 0.0
    ending: float = 1e-5

    def __call__(self, seen: int) -> float:
        return _risen(self, seen, lambda left: self.ending + (1 - self.ending) * left)


class Cosine(NamedTuple):
    """Linear rise over the warm-up, then decay along half a cosine to `ending`."""

    target: int
    warmup: float = 0.0
    ending: float = 1e-5

    def __call__(self, seen: int) -> float:
        fallen = (1 - self.ending) * 0.5
        return _risen(self, seen, lambda left: self.ending + fallen * (1 - math.cos(math.pi * left)))


class Stepwise(NamedTuple):
    """Multiplication by `ratio` after every `epochs` epochs."""

    epoch_samples: int
    ratio: float = 0.1
    epochs: int = 30

    def __call__(self, seen: int) -> float:
        return float(self.ratio ** (seen // self.epoch_samples // self.epochs))


class Constant(NamedTuple):
    """Linear rise over the warm-up, then a constant rate."""

    target: int
    warmup: float = 0.0

    def __call__(self, seen: int) -> float:
        return _risen(self, seen, lambda left: 1.0)


def make(params: Params, *, target: int, epoch_samples: Callable[[], int]) -> Schedule:
    """Return the schedule that the parameters describe."""
    if params.decay == "stepwise":
        return Stepwise(epoch_samples(), params.stepwise_ratio, params.stepwise_epochs)
    if params.decay == "cosine":
        return Cosine(target, params.warmup, params.ending_lr_ratio)
    if params.decay == "none":
        return Constant(target, params.warmup)
    return Linear(target, params.warmup, params.ending_lr_ratio)


def _risen(schedule: Linear | Cosine | Constant, seen: int, after: Callable[[float], float]) -> float:
    """Return the rising share during the warm-up, then `after` of the remaining share of the training."""
    warm = int(schedule.warmup * schedule.target)
    if seen <= warm and warm > 0:
        return seen / warm
    return after(max(schedule.target - seen, 0) / max(1, schedule.target - warm))
