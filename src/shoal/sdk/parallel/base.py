"""Base class of all kinds of parallelism. Importing this module does not import torch."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shoal.sdk.parallel.tuning import Tuning

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

    from shoal.sdk.saving.shards import Shards

State = dict[str, Any]
"""State dict as in a single process: plain names, full shapes."""


class Parallel(ABC):
    """One kind of parallelism. Every rank must make the calls marked *collective*, in the same order."""

    name: str
    data_rank: int = 0
    """Index of the data share this process reads. The pipeline stages of one group read the same share."""
    data_world: int = 1
    """Number of data shares."""
    random_rank: int
    """Rank whose random numbers this process draws: the first of those that compute the same values. Default: its own."""
    is_sharded: bool = False
    """True if every process holds and saves its own part of the tensors."""
    data_seed: int = 0
    """Added to the seed of the sample order, where independent processes (swarm peers) read the same data."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.tuning = Tuning()
        self._swapped: dict[int, tuple[weakref.ref[nn.Parameter], nn.Parameter]] = {}

    @abstractmethod
    def wrap(self, model: nn.Module) -> nn.Module:
        """Move the model to the device, wrap it, and give every rank the weights of rank 0. Collective; once per model."""

    def adopt(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Point the optimizer's groups, in place, to the parameters of the wrapped model. Collective; after `wrap`."""
        del model
        if self._swapped:
            for group in optimizer.param_groups:
                group["params"] = [self._new(param) for param in group["params"]]
        move_state(optimizer)

    def note_swapped(self, before: Mapping[str, nn.Parameter], model: nn.Module) -> None:
        """Note which parameters have been replaced by others since `before` (by name), for optimizers that hold them."""
        for name, new in model.named_parameters(remove_duplicate=False):
            old = before[name]
            if new is not old:
                self._swapped[id(old)] = (weakref.ref(old), new)

    def _new(self, param: torch.Tensor) -> torch.Tensor:
        old, new = self._swapped.get(id(param), (None, None))
        return new if new is not None and old is not None and old() is param else param

    def unwrap(self, model: nn.Module) -> nn.Module:
        """Return the user's module inside `model`."""
        return model

    def sync_gradients(self, model: nn.Module, on: bool) -> None:
        """Switch the exchange of gradients in the next backward passes on or off (off while accumulating)."""
        del model, on

    def live_state(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> tuple[State, list[State]] | None:
        """Return state dicts that reference live tensors; None if rank 0 does not hold all of them."""
        del model, optimizers
        return None

    def sharded_state(
        self, model: nn.Module, optimizers: Sequence[Optimizer]
    ) -> tuple[State, list[State], dict[str, str]] | None:
        """Return state dicts with DTensors that reference live tensors, and the names of tied weights with the first name.

        None if the state is not sharded: it is then saved whole.
        """
        del model, optimizers
        return None

    def load_shards(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        model_state: State,
        optimizer_states: Sequence[State],
        shards: Shards,
    ) -> None:
        """Load state dicts that have markers of `shards` in the place of tensors. Not collective."""
        raise NotImplementedError

    def begin(self, schedulers: Sequence[Any], samples: Callable[[], int | None]) -> None:
        """Run after each `prepare`. `samples` returns the number of samples of the current step, or None if unknown."""
        del schedulers, samples

    def note(self, metrics: Mapping[str, float]) -> None:
        """Receive the metrics of each step."""
        del metrics

    def close(self) -> None:  # noqa: B027
        """Release resources at the end of the run."""

    @abstractmethod
    def full_state(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> tuple[State, list[State]] | None:
        """Return copies on the CPU with the names, shapes and indices of a single process; None except on rank 0.

        Collective.
        """

    @abstractmethod
    def load(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        model_state: State,
        optimizer_states: Sequence[State],
    ) -> None:
        """Load a full state; every rank passes the same one. Collective."""


def move_state(optimizer: Optimizer) -> None:
    """Move optimizer state that was made before the model was moved to the device of its parameters."""
    import torch

    for param, state in optimizer.state.items():
        for key, value in state.items():
            # `step` counters stay where they are: most optimizers need them on the CPU.
            if isinstance(value, torch.Tensor) and value.dim() > 0 and value.device != param.device:
                state[key] = value.to(param.device)


def to_cpu(value: Any) -> Any:
    """Return a copy of a nest of dicts, lists and tensors, with copies of all tensors on the CPU."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: to_cpu(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(to_cpu(item) for item in value)
    return value
