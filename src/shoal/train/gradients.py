"""The gradient of one step, out of several mini-batches on several workers; and the numbers the workers tell each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

torch: Any = import_module("torch")


class Totals(NamedTuple):
    """Over all workers and mini-batches of one step."""

    samples: int
    loss: float
    """Mean per sample, or of the mini-batches' means where each of them counts the same."""


class Tally:
    """Losses and samples of the mini-batches of one step on this worker."""

    def __init__(self, *, by_sample: bool):
        self._by_sample = by_sample
        self.pieces = self.samples = 0
        self._weight = self._loss = 0.0
        self._figures: dict[str, float] = {}

    @property
    def figures(self) -> dict[str, float]:
        """Means of this worker's."""
        return {name: value / (self._weight or 1.0) for name, value in self._figures.items()}

    def add(self, loss: float, samples: int, figures: Mapping[str, Any]) -> None:
        weight = samples if self._by_sample else 1
        self.pieces += 1
        self.samples += samples
        self._weight += weight
        self._loss += weight * loss
        for name, value in figures.items():
            self._figures[name] = self._figures.get(name, 0.0) + weight * float(value)

    def over_all(self, group: Any, world_size: int) -> Totals:
        """Collective: one small message."""
        told = [self._weight, self._loss, float(self.samples)]
        if world_size > 1:
            message = torch.tensor(told, dtype=torch.float64)
            torch.distributed.all_reduce(message, group=group)
            told = message.tolist()
        weight, loss, samples = told
        return Totals(round(samples), loss / (weight or 1.0))


class Gradient:
    """How the losses of mini-batches become one gradient.

    The run averages over mini-batches and workers. Where it deals the data it weighs each by its samples and nothing is left to
    do here. Elsewhere each counts the same, unless every sample is to (`true_gradient`): then a loss counts times its samples,
    and the average is put right by the number of averaged terms over the number of samples.
    """

    def __init__(self, *, by_sample: bool, world_size: int):
        self.by_sample, self._world_size = by_sample, world_size

    def weigh(self, loss: Any, samples: int) -> Any:
        return loss * samples if self.by_sample else loss

    def put_right(self, parameters: Iterable[Any], *, samples: int, pieces: int) -> None:
        """`samples` over all workers, `pieces` on this one."""
        if not self.by_sample or samples == 0:
            return
        factor = pieces * self._world_size / samples
        gradients = [p.grad for p in parameters if p.grad is not None]
        if factor != 1.0 and gradients:
            torch._foreach_mul_(gradients, factor)


def all_agree(yes: bool, group: Any, world_size: int) -> bool:
    """Collective. Whether every worker says yes."""
    if world_size == 1:
        return yes
    message = torch.tensor([yes], dtype=torch.int32)
    torch.distributed.all_reduce(message, op=torch.distributed.ReduceOp.MIN, group=group)
    return bool(message.item())


def sample_count(batch: Any) -> int:
    """Size of the first tensor in a batch, however it is nested."""
    found = _first_tensor(batch)
    return int(found.shape[0]) if found is not None and found.dim() else 1


def non_finite(model: Any) -> list[str]:
    """Names of parameters and gradients that hold a NaN or an infinity; of a sharded model, in this worker's part."""
    found = []
    for name, parameter in model.named_parameters():
        if not _is_finite(parameter):
            found.append(name)
        if parameter.grad is not None and not _is_finite(parameter.grad):
            found.append(f"{name}.grad")
    return found


def _is_finite(tensor: Any) -> bool:
    # Asked as a whole, the parts of a sharded tensor would wait for each other.
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return bool(torch.isfinite(local.detach()).all())


def _first_tensor(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return next((t for v in value if (t := _first_tensor(v)) is not None), None)
    return None
