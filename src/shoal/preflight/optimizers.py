"""Observation of optimizer steps: their speed, their parameters, and whether they have an effect."""

from __future__ import annotations

import statistics
import time
from importlib import import_module
from typing import Any

from . import machine
from .losses import is_finite
from .models import Models
from .probe import STEPS, Probe

_NAMED = 3


class Optimizers:
    def __init__(self, torch: Any, probe: Probe, models: Models):
        self._torch, self._probe, self._models = torch, probe, models
        self.known: dict[int, Any] = {}
        self._at: list[float] = []
        """Times at which the first optimizer finished its steps."""
        self._rates: list[float] = []
        self._without_gradient: set[int] | None = None
        """Parameters (by id) that had no gradient in any step of the first optimizer."""
        self._held: dict[int, Any] = {}
        """Mapping of optimizer → a parameter and its gradient that was used and not cleared."""
        self._stale: set[int] = set()
        """Optimizers whose used gradients were not cleared before the next backward pass."""
        module: Any = import_module("torch.optim.optimizer")
        module.register_optimizer_step_pre_hook(self._before)
        module.register_optimizer_step_post_hook(self._after)
        self._watch_clearing(torch.optim.Optimizer)
        self._watch_clearing(torch.nn.Module)
        probe.at_end.append(self._judge)

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
        if not self._probe.is_here:
            return
        self.known.setdefault(id(optimizer), optimizer)
        if id(optimizer) in self._stale:
            told = "The gradients of the last step were not cleared, and the new ones are added to them."
            self._probe.find("no-zero-grad", told, where=self._probe.here())
        if optimizer is self.first and len(self._at) < STEPS:
            without = {id(p) for p in _parameters(optimizer) if p.requires_grad and p.grad is None}
            before = self._without_gradient
            self._without_gradient = without if before is None else before & without
            if not self._at:
                self._find_forgotten()

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        probe = self._probe
        if not probe.is_here:
            return
        used = next((p for p in _parameters(optimizer) if p.grad is not None), None)
        if used is not None:
            self._held[id(optimizer)] = (used, used.grad)
        if optimizer is not self.first:
            return
        self._rates.append(max(float(group.get("lr") or 0) for group in optimizer.param_groups))
        self._check_weights(optimizer)
        self._at.append(time.monotonic())
        probe.seen.steps += 1
        if probe.first_step_at is None:
            probe.first_step_at = self._at[0]
        probe.reach("step")
        over = time.monotonic() - probe.first_step_at > 3 * probe.asked.spare_s
        if probe.has_enough and (not probe.in_pass or over):
            probe.stop()

    def _check_weights(self, optimizer: Any) -> None:
        if len(self._at) >= STEPS:
            return
        bad = {id(p) for p in _parameters(optimizer) if not is_finite(self._torch, p)}
        if bad:
            told = f"After step {len(self._at) + 1}, {_some(self._models.name_of(bad))} no longer finite."
            self._probe.find("not-finite", told, where=self._probe.here())

    def _find_forgotten(self) -> None:
        """Record at the first step if no weight with a gradient belongs to an optimizer."""
        has = {id(p) for p in self._all_parameters()}
        roots = list(self._models.roots.values())
        graded = {id(p) for root in roots for p in root.parameters() if p.requires_grad and p.grad is not None}
        if graded and not graded & has:
            told = f"None of the {len(graded)} weights with a gradient is in the optimizer."
            self._probe.find("not-optimized", told, where=self._probe.here())

    def _all_parameters(self) -> list[Any]:
        """Return the parameters of all optimizers, including those that have not made a step yet."""
        import gc

        kind = self._torch.optim.Optimizer
        # type(o), not o.__class__: the latter makes some lazy objects import modules.
        found = [o for o in gc.get_objects() if issubclass(type(o), kind)]
        return [p for o in found if getattr(o, "param_groups", None) for p in _parameters(o)]

    def _judge(self) -> None:
        probe = self._probe
        self._record_sizes()
        gaps = [b - a for a, b in zip(self._at, self._at[1:], strict=False)]
        if gaps:
            probe.facts["step_s"] = round(statistics.median(gaps[:STEPS]), 6)
            probe.facts["first_step_s"] = round(self._at[0] - probe.began_at, 3)
        if self.first is None and not probe.stopping and not probe.has_errors and self._all_parameters():
            probe.find("never-steps", "The script creates an optimizer but ends without a step.")
        if len(self._rates) > 1 and not any(self._rates):
            probe.find("learning-rate", f"The learning rate is 0 in all {len(self._rates)} steps.")
        if self._without_gradient:
            self._report_unused(self._without_gradient)

    def _report_unused(self, unused: set[int]) -> None:
        kind, probe = self._torch.nn.parallel.DistributedDataParallel, self._probe
        strict = [r for r in self._models.roots.values() if isinstance(r, kind) and not r.find_unused_parameters]
        fatal = probe.ended_over_unused or (probe.asked.workers > 1 and bool(strict))
        told = f"{_some(self._models.name_of(unused))} without a gradient in every step."
        probe.find("unused-parameters", told, severity="error" if fatal else None)

    def _record_sizes(self) -> None:
        if self.first is None:
            return
        facts, parameters = self._probe.facts, [p for o in self.known.values() for p in _parameters(o)]
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
            facts["limit_bytes"] = self._probe.asked.memory or machine.memory()


def _parameters(optimizer: Any) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _bytes(tensors: list[Any]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _some(names: list[str]) -> str:
    if not names:
        return "Some weights are"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more} {'is' if len(names) == 1 else 'are'}"
