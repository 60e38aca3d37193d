"""Gradient of one step from several mini-batches on several workers, and the numbers that workers exchange for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

torch: Any = import_module("torch")


class Totals(NamedTuple):
    """Totals over all workers and mini-batches of one step."""

    samples: int
    loss: float
    """Mean loss per sample, or mean of the mini-batches' losses if all of them count the same."""


class StepTotals:
    """Losses and samples of the mini-batches of one step on this worker."""

    def __init__(self, *, by_sample: bool):
        self._by_sample = by_sample
        self.pieces = self.samples = 0
        self._weight = self._loss = 0.0
        self._figures: dict[str, float] = {}

    @property
    def figures(self) -> dict[str, float]:
        """Mean figures of this worker."""
        return {name: value / (self._weight or 1.0) for name, value in self._figures.items()}

    def add(self, loss: float, samples: int, figures: Mapping[str, Any]) -> None:
        weight = samples if self._by_sample else 1
        self.pieces += 1
        self.samples += samples
        self._weight += weight
        self._loss += weight * loss
        for name, value in figures.items():
            self._figures[name] = self._figures.get(name, 0.0) + weight * float(value)

    def over_all(self, group: Any, world_size: int, shares: int | None = None) -> Totals:
        """Return the totals over all workers. Collective: one small message.

        Args:
            group: Process group of all workers.
            world_size: Number of workers.
            shares: Number of data shares. Workers that read the same share count once; by default each has its own.
        """
        sums = [self._weight, self._loss, float(self.samples)]
        if world_size > 1:
            message = torch.tensor(sums, dtype=torch.float64)
            torch.distributed.all_reduce(message, group=group)
            sums = message.tolist()
        weight, loss, samples = sums
        return Totals(round(samples * (shares or world_size) / world_size), loss / (weight or 1.0))


class Gradient:
    """Rule that combines the losses of mini-batches into one gradient.

    The run averages over mini-batches and workers. If it distributes the data, it weights each mini-batch by its samples and
    nothing remains to do here. Otherwise all mini-batches count the same. With `true_gradient` every sample counts the same:
    a loss is multiplied by its samples, and the averaged gradient by the number of averaged terms over all samples.
    """

    def __init__(self, *, by_sample: bool, world_size: int):
        self.by_sample, self._world_size = by_sample, world_size

    def weigh(self, loss: Any, samples: int) -> Any:
        """Return the loss of a mini-batch with its weight applied."""
        return loss * samples if self.by_sample else loss

    def put_right(self, parameters: Iterable[Any], *, samples: int, pieces: int) -> None:
        """Scale the averaged gradients. `samples` is over all workers, `pieces` is the number of mini-batches on this one."""
        if not self.by_sample or samples == 0:
            return
        factor = pieces * self._world_size / samples
        gradients = [p.grad for p in parameters if p.grad is not None]
        if factor != 1.0 and gradients:
            torch._foreach_mul_(gradients, factor)


def all_agree(yes: bool, group: Any, world_size: int) -> bool:
    """Return whether all workers passed True. Collective."""
    if world_size == 1:
        return yes
    message = torch.tensor([yes], dtype=torch.int32)
    torch.distributed.all_reduce(message, op=torch.distributed.ReduceOp.MIN, group=group)
    return bool(message.item())


def sample_count(batch: Any) -> int:
    """Return the size of the first tensor in a nested batch; 1 if there is none."""
    found = _first_tensor(batch)
    return int(found.shape[0]) if found is not None and found.dim() else 1


def non_finite(model: Any) -> list[str]:
    """Return the names of parameters and gradients with a NaN or infinity; of a sharded model, in this worker's shard."""
    found = []
    for name, parameter in model.named_parameters():
        if not _is_finite(parameter):
            found.append(name)
        if parameter.grad is not None and not _is_finite(parameter.grad):
            found.append(f"{name}.grad")
    return found


def _is_finite(tensor: Any) -> bool:
    # Only the local shard: a check of the whole tensor would be collective.
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
