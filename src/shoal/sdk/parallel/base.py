"""What every way of spreading one model over processes promises. Nothing here imports torch at import time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

State = dict[str, Any]
"""A state dict of a plain process: plain names, full shapes."""


class Parallel(ABC):
    """One way of parallelism. Calls marked *collective* must be made by every rank, in the same order."""

    name: str
    data_rank: int = 0
    """Which share of the data this process reads. The pipeline stages of one group read the same share."""
    data_world: int = 1
    """How many shares there are."""
    data_seed: int = 0
    """Added to the seed of the data order, where processes that know nothing of each other read the same data."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @abstractmethod
    def wrap(self, model: nn.Module) -> nn.Module:
        """Collective. Once per model: moves it to the device and makes every rank start from rank 0's weights."""

    def adopt(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Collective, after `wrap`: point the optimizer's groups, in place, at the wrapped model's parameters."""
        del model
        move_state(optimizer)

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The user's own module inside `model`."""
        return model

    def sync_gradients(self, model: nn.Module, on: bool) -> None:
        """Whether the gradients of the coming backward passes are exchanged (off while accumulating)."""
        del model, on

    def live_state(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> tuple[State, list[State]] | None:
        """State dicts that reference live tensors, where rank 0 holds all of them; None where it does not."""
        del model, optimizers
        return None

    def begin(self, schedulers: Sequence[Any], samples: Callable[[], int | None]) -> None:
        """After each `prepare`. `samples`: of the step at hand, where the loader tells."""
        del schedulers, samples

    def note(self, metrics: Mapping[str, float]) -> None:
        """After each step."""
        del metrics

    def close(self) -> None:  # noqa: B027
        """The run is over."""

    @abstractmethod
    def full_state(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> tuple[State, list[State]] | None:
        """Collective. Copies on the CPU with the names, shapes and indices of a plain process; None except on rank 0."""

    @abstractmethod
    def load(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        model_state: State,
        optimizer_states: Sequence[State],
    ) -> None:
        """Collective. Every rank passes the same full state."""


def move_state(optimizer: Optimizer) -> None:
    """Optimizer state made before the model moved follows its parameters to their device."""
    import torch

    for param, state in optimizer.state.items():
        for key, value in state.items():
            # `step` counters stay where the optimizer put them: most of them want theirs on the CPU.
            if isinstance(value, torch.Tensor) and value.dim() > 0 and value.device != param.device:
                state[key] = value.to(param.device)


def to_cpu(value: Any) -> Any:
    """A copy of a nest of dicts, lists and tensors with every tensor on the CPU and owned by the copy."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: to_cpu(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(to_cpu(item) for item in value)
    return value
