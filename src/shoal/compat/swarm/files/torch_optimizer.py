"""The only optimizer that NetMind's swarm examples use from torch_optimizer, for machines without that package."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from shoal.train.optim.lamb import Lamb as _Lamb

__all__ = ["Lamb"]

torch: Any = import_module("torch")


class Lamb(_Lamb):
    """LAMB with the weights' norm limited to `clamp_value`, and with bias correction only if `debias` is set."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        clamp_value: float = 10.0,
        adam: bool = False,
        debias: bool = False,
    ):
        self.clamp_value, self.adam, self.debias = clamp_value, adam, debias
        super().__init__(params, lr, betas, eps, weight_decay)

    def _update(self, parameter: Any, group: dict[str, Any]) -> None:
        state, (first, second) = self.state[parameter], group["betas"]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
        state["step"] += 1
        mean = state["exp_avg"].lerp_(parameter.grad, 1 - first)
        square = state["exp_avg_sq"].mul_(second).addcmul_(parameter.grad, parameter.grad, value=1 - second)
        size = group["lr"]
        if self.debias:
            size *= float((1 - second ** state["step"]) ** 0.5 / (1 - first ** state["step"]))
        update = mean / (square.sqrt() + group["eps"])
        if group["weight_decay"]:
            update.add_(parameter, alpha=group["weight_decay"])
        weight_norm, update_norm = parameter.norm().clamp(0, self.clamp_value), update.norm()
        scaled = not self.adam and weight_norm > 0 and update_norm > 0
        parameter.add_(update, alpha=-size * (float(weight_norm / update_norm) if scaled else 1.0))
