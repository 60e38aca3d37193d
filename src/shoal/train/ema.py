"""Exponential moving average of a model's weights, for evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from shoal.sdk.parallel.names import fitted, plain_names

torch: Any = import_module("torch")


class Ema:
    """Moving average of a model's weights. The run saves and restores it like a scheduler.

    Args:
        model: The module without wrapper.
        decay: Share of the old average that is kept at each step, such as 0.999.

    Example:
        >>> ema = Ema(model, 0.999)
        >>> optimizer.step(); ema.step()
        >>> with ema.applied():
        ...     evaluate(model)
    """

    def __init__(self, model: Any, decay: float):
        self._model, self._decay = model, decay
        self._average = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}

    def step(self) -> None:
        """Update the average. Call it after every optimizer step."""
        with torch.no_grad():
            for name, parameter in self._model.named_parameters():
                if name in self._average:
                    self._average[name].lerp_(parameter.detach(), 1 - self._decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the averages into the model inside this context, and its own weights back afterwards."""
        parameters = dict(self._model.named_parameters())
        own = {name: parameters[name].detach().clone() for name in self._average}
        self._put(parameters, self._average)
        try:
            yield
        finally:
            self._put(parameters, own)

    def state_dict(self) -> dict[str, Any]:
        # Copies, because the state is written to disk while training continues.
        return {"ema": {name: value.clone() for name, value in plain_names(self._average).items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in fitted(state["ema"], self._average).items():
            self._average[name].copy_(value)

    @staticmethod
    def _put(parameters: dict[str, Any], values: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, value in values.items():
                parameters[name].copy_(value)
