"""Optimizers as they step: how fast, on what, and whether anything comes of it."""

from __future__ import annotations

import statistics
import time
from importlib import import_module
from typing import Any

from . import machine
from .losses import is_finite
from .models import Models
from .trial import STEPS, Trial

_NAMED = 3


class Optimizers:
    def __init__(self, torch: Any, trial: Trial, models: Models):
        self._torch, self._trial, self._models = torch, trial, models
        self.known: dict[int, Any] = {}
        self._at: list[float] = []
        """When the first optimizer ended each step."""
        self._rates: list[float] = []
        self._without_gradient: set[int] | None = None
        """Parameters (by id) that had none at any step of the first optimizer."""
        self._held: dict[int, Any] = {}
        """Optimizer → a gradient it has used and nobody has cleared."""
        self._stale: set[int] = set()
        """Optimizers whose used gradients a backward pass has added to."""
        module: Any = import_module("torch.optim.optimizer")
        module.register_optimizer_step_pre_hook(self._before)
        module.register_optimizer_step_post_hook(self._after)
        self._watch_clearing(torch.optim.Optimizer)
        self._watch_clearing(torch.nn.Module)
        trial.at_end.append(self._judge)

    @property
    def first(self) -> Any:
        return next(iter(self.known.values()), None)

    def backward_begins(self) -> None:
        for key, parameter_and_gradient in self._held.items():
            parameter, gradient = parameter_and_gradient
            if parameter.grad is gradient and bool(gradient.any()):
                self._stale.add(key)

    def _watch_clearing(self, owner: Any) -> None:
        original = owner.zero_grad

        def zero_grad(this: Any, *args: Any, **kwargs: Any) -> Any:
            done = original(this, *args, **kwargs)
            for key in [id(this)] if id(this) in self.known else list(self.known):
                self._held.pop(key, None)
                self._stale.discard(key)
            return done

        owner.zero_grad = zero_grad

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._trial.is_here:
            return
        self.known.setdefault(id(optimizer), optimizer)
        if id(optimizer) in self._stale:
            told = "The gradients of the last step are still there, and the new ones are added to them."
            self._trial.find("no-zero-grad", told, where=self._trial.here())
        if optimizer is self.first and len(self._at) < STEPS:
            without = {id(p) for p in _parameters(optimizer) if p.requires_grad and p.grad is None}
            before = self._without_gradient
            self._without_gradient = without if before is None else before & without
            if not self._at:
                self._find_forgotten()

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        trial = self._trial
        if not trial.is_here:
            return
        used = next((p for p in _parameters(optimizer) if p.grad is not None), None)
        if used is not None:
            self._held[id(optimizer)] = (used, used.grad)
        if optimizer is not self.first:
            return
        self._rates.append(max(float(group.get("lr") or 0) for group in optimizer.param_groups))
        self._look_at_weights(optimizer)
        self._at.append(time.monotonic())
        trial.seen.steps += 1
        if trial.first_step_at is None:
            trial.first_step_at = self._at[0]
        trial.reach("step")
        over = time.monotonic() - trial.first_step_at > 3 * trial.asked.spare_s
        if trial.has_enough and (not trial.in_pass or over):
            trial.stop()

    def _look_at_weights(self, optimizer: Any) -> None:
        if len(self._at) >= STEPS:
            return
        bad = {id(p) for p in _parameters(optimizer) if not is_finite(self._torch, p)}
        if bad:
            told = f"After step {len(self._at) + 1}, {_some(self._models.name_of(bad))} no longer finite."
            self._trial.find("not-finite", told, where=self._trial.here())

    def _find_forgotten(self) -> None:
        """Weights with gradients that no optimizer has, at the first step of the first one."""
        has = {id(p) for p in self._all_parameters()}
        roots = list(self._models.roots.values())
        graded = {id(p) for root in roots for p in root.parameters() if p.requires_grad and p.grad is not None}
        if graded and not graded & has:
            told = f"None of the {len(graded)} weights with a gradient is in the optimizer."
            self._trial.find("not-optimized", told, where=self._trial.here())

    def _all_parameters(self) -> list[Any]:
        """Of all optimizers there are, also of those that have not stepped yet."""
        import gc

        kind = self._torch.optim.Optimizer
        # By their types: to ask some objects for their class would import things.
        found = [o for o in gc.get_objects() if issubclass(type(o), kind)]
        return [p for o in found if getattr(o, "param_groups", None) for p in _parameters(o)]

    def _judge(self) -> None:
        trial = self._trial
        self._tell_sizes()
        gaps = [b - a for a, b in zip(self._at, self._at[1:], strict=False)]
        if gaps:
            trial.facts["step_s"] = round(statistics.median(gaps[:STEPS]), 6)
            trial.facts["first_step_s"] = round(self._at[0] - trial.began_at, 3)
        if self.first is None and not trial.stopping and not trial.has_errors and self._all_parameters():
            trial.find("never-steps", "It makes an optimizer, and ends without a single step.")
        if len(self._rates) > 1 and not any(self._rates):
            trial.find("learning-rate", f"The learning rate is 0 in all {len(self._rates)} steps.")
        if self._without_gradient:
            self._tell_unused(self._without_gradient)

    def _tell_unused(self, unused: set[int]) -> None:
        kind, trial = self._torch.nn.parallel.DistributedDataParallel, self._trial
        strict = [r for r in self._models.roots.values() if isinstance(r, kind) and not r.find_unused_parameters]
        fatal = trial.ended_over_unused or (trial.asked.workers > 1 and bool(strict))
        told = f"{_some(self._models.name_of(unused))} without a gradient in every step."
        trial.find("unused-parameters", told, severity="error" if fatal else None)

    def _tell_sizes(self) -> None:
        if self.first is None:
            return
        facts, parameters = self._trial.facts, [p for o in self.known.values() for p in _parameters(o)]
        facts["parameters"] = sum(p.numel() for p in parameters)
        facts["parameter_bytes"] = _bytes(parameters)
        facts["gradient_bytes"] = _bytes([p.grad for p in parameters if p.grad is not None]) or _bytes(
            [p for p in parameters if p.requires_grad]
        )
        states = [v for o in self.known.values() for state in o.state.values() for v in state.values()]
        facts["optimizer_bytes"] = _bytes([v for v in states if isinstance(v, self._torch.Tensor)])
        if self._torch.cuda.is_available() and parameters and parameters[0].is_cuda:
            device = parameters[0].device
            facts["peak_bytes"] = int(self._torch.cuda.max_memory_reserved(device))
            facts["limit_bytes"] = int(self._torch.cuda.get_device_properties(device).total_memory)
            facts["on"] = "GPU"
        else:
            facts |= {"peak_bytes": machine.peak_memory(), "on": "machine"}
            facts["limit_bytes"] = self._trial.asked.memory or machine.memory()


def _parameters(optimizer: Any) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _bytes(tensors: list[Any]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _some(names: list[str]) -> str:
    if not names:
        return "Some weights are"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more} {'is' if len(names) == 1 else 'are'}"
