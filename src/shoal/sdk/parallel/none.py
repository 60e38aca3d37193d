"""One process, one model: nothing to exchange."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.optim import Optimizer

from shoal.sdk.parallel.base import Parallel, State, to_cpu


class NoParallel(Parallel):
    """The model as it is, on the device. With more than one process each trains on its own."""

    name = "none"

    def wrap(self, model: nn.Module) -> nn.Module:
        return model.to(self.device)

    def live_state(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> tuple[State, list[State]] | None:
        return self.unwrap(model).state_dict(), [optimizer.state_dict() for optimizer in optimizers]

    def full_state(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> tuple[State, list[State]] | None:
        state = self.live_state(model, optimizers)
        return None if state is None else (to_cpu(state[0]), to_cpu(state[1]))

    def load(
        self, model: nn.Module, optimizers: Sequence[Optimizer], model_state: State, optimizer_states: Sequence[State]
    ) -> None:
        self.unwrap(model).load_state_dict(model_state)
        for optimizer, state in zip(optimizers, optimizer_states, strict=True):
            optimizer.load_state_dict(state)
