"""LAMB optimizer for large batches: Adam with steps scaled to the norm of each layer's weights (You et al., 2020)."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

torch: Any = import_module("torch")


class Lamb(torch.optim.Optimizer):  # type: ignore[misc]
    """LAMB optimizer, with the arguments of torch.optim.AdamW.

    Args:
        params: Parameters or parameter groups.
        lr: Learning rate.
        betas: Decay of the averages of gradient and squared gradient.
        eps: Term added to the denominator.
        weight_decay: Weight decay.

    Example:
        >>> optimizer = Lamb(model.parameters(), lr=2e-3, weight_decay=0.01)
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step; return the loss of `closure`, if given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._update(parameter, group)
        return loss

    def _update(self, parameter: Any, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        first, second = group["betas"]
        mean = state["exp_avg"].mul_(first).add_(parameter.grad, alpha=1 - first)
        square = state["exp_avg_sq"].mul_(second).addcmul_(parameter.grad, parameter.grad, value=1 - second)
        steps = float(state["step"])
        update = (mean / (1 - first**steps)) / ((square / (1 - second**steps)).sqrt() + group["eps"])
        if group["weight_decay"]:
            update.add_(parameter, alpha=group["weight_decay"])
        weight_norm, update_norm = parameter.norm(), update.norm()
        trust = float(weight_norm / update_norm) if weight_norm > 0 and update_norm > 0 else 1.0
        parameter.add_(update, alpha=-group["lr"] * trust)
