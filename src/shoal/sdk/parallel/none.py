"""No parallelism: one process trains one model and exchanges nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from shoal.sdk.parallel.base import Parallel, State, to_cpu
from shoal.sdk.parallel.empty import Filling, is_empty
from shoal.sdk.parallel.names import fitted, plain_names
from shoal.sdk.parallel.placed import moved
from shoal.sdk.parallel.tuning import tune_blocks


class NoParallel(Parallel):
    """Moves the model to the device, unless it was placed already. With more than one process, each trains its own."""

    name = "none"

    def wrap(self, model: nn.Module) -> nn.Module:
        before = dict(model.named_parameters(remove_duplicate=False))
        if is_empty(model):
            filling = Filling(model, self._seed())
            filling.fill(model.modules())
            filling.read()
        tune_blocks(model, self.tuning)
        found: nn.Module = moved(model, self.device)
        self.note_swapped(before, found)
        return found

    def _seed(self) -> int:
        """Return the seed of the weights of an empty model."""
        return torch.initial_seed()

    def live_state(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> tuple[State, list[State]] | None:
        return plain_names(self.unwrap(model).state_dict()), [optimizer.state_dict() for optimizer in optimizers]

    def full_state(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> tuple[State, list[State]] | None:
        state = self.live_state(model, optimizers)
        return None if state is None else (to_cpu(state[0]), to_cpu(state[1]))

    def load(
        self, model: nn.Module, optimizers: Sequence[Optimizer], model_state: State, optimizer_states: Sequence[State]
    ) -> None:
        inner = self.unwrap(model)
        inner.load_state_dict(fitted(model_state, inner.state_dict()))
        for optimizer, state in zip(optimizers, optimizer_states, strict=True):
            optimizer.load_state_dict(state)
