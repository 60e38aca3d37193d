"""The gradient of one step, out of several mini-batches on several workers; and the numbers the workers tell each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, NamedTuple

torch: Any = import_module("torch")


class Totals(NamedTuple):
    """Over all workers and mini-batches of one step."""

    samples: float
    loss: float
    """Mean per sample with the true gradient, else mean of the mini-batches' means."""
    should_stop: bool
    out_of_data: bool


class Exchange:
    """One small message per step among the workers. Works without them too."""

    def __init__(self, group: Any, world_size: int):
        self._group, self._world_size = group, world_size

    def __call__(self, *, samples: float, loss: float, should_stop: bool, out_of_data: bool) -> Totals:
        told = torch.tensor([samples, loss, float(should_stop), float(out_of_data)], dtype=torch.float64)
        if self._world_size > 1:
            torch.distributed.all_reduce(told, group=self._group)
        total, loss_sum, stops, empties = told.tolist()
        return Totals(total, loss_sum, stops > 0, empties > 0)


class Gradient:
    """How the losses of mini-batches become one gradient: the plain mean of means, or every sample weighed alike.

    Workers' gradients are averaged by DDP or FSDP. With `true_gradient` each loss counts times its samples and the average is put
    right by world size over samples; without, mini-batches count the same however many samples they hold.
    """

    def __init__(self, *, true_gradient: bool, world_size: int):
        self.true_gradient, self._world_size = true_gradient, world_size

    def weigh(self, loss: Any, samples: float) -> Any:
        return loss * samples if self.true_gradient else loss

    def put_right(self, parameters: Iterable[Any], *, samples: float, batches: int) -> None:
        """`samples` over all workers, `batches` on this one."""
        factor = self._world_size / samples if self.true_gradient else 1.0 / batches
        if factor == 1.0:
            return
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def mean_loss(self, total: float, *, samples: float, batches: int) -> float:
        """Of the sum over all workers."""
        return total / samples if self.true_gradient else total / (batches * self._world_size)


def sample_count(batch: Any) -> int:
    """Size of the first tensor in a batch, however it is nested."""
    found = _first_tensor(batch)
    return int(found.shape[0]) if found is not None and found.dim() else 1


def non_finite(model: Any) -> list[str]:
    """Names of parameters and gradients that hold a NaN or an infinity."""
    found = []
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter.detach()).all()):
            found.append(name)
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
            found.append(f"{name}.grad")
    return found


def _first_tensor(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return next((t for v in value if (t := _first_tensor(v)) is not None), None)
    return None


Sync = Callable[[bool], None]
"""Whether the gradients of the coming backward are exchanged."""
