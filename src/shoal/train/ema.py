"""An exponential moving average of a model's weights, to evaluate with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

torch: Any = import_module("torch")


class Ema:
    """Call `step` after every optimizer step. Saved and restored by the run like a scheduler."""

    def __init__(self, model: Any, decay: float):
        self._model, self._decay = model, decay
        self._average = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}

    def step(self) -> None:
        with torch.no_grad():
            for name, parameter in self._model.named_parameters():
                if name in self._average:
                    self._average[name].lerp_(parameter.detach(), 1 - self._decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model holds the averages inside, its own weights again after."""
        parameters = dict(self._model.named_parameters())
        own = {name: parameters[name].detach().clone() for name in self._average}
        self._put(parameters, self._average)
        try:
            yield
        finally:
            self._put(parameters, own)

    def state_dict(self) -> dict[str, Any]:
        # Copies: the state is written while training goes on.
        return {"ema": {name: value.clone() for name, value in self._average.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state["ema"].items():
            self._average[name].copy_(value)

    @staticmethod
    def _put(parameters: dict[str, Any], values: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, value in values.items():
                parameters[name].copy_(value)
