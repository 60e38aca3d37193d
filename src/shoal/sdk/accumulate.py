"""Gradient accumulation: one optimizer step per global batch, with the gradient of the exact mean over its samples.

A global batch arrives in one or more micro-batches. Until the last one, `step` of optimizer, scheduler and scaler does
nothing. Where every rank holds whole parameters (none, ddp, swarm), a hook on each parameter weights its gradient, and the
gradients of all micro-batches but the last are kept aside: a loop that clips gradients in every iteration then clips the
sum and nothing else. With other kinds of parallelism the outputs of the model are weighted instead.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import MethodType
from typing import Any

from shoal.sdk.samples.order import Micro

torch: Any = import_module("torch")


class Accumulation:
    """Gradient accumulation over the micro-batches of a global batch, for all prepared objects."""

    def __init__(self, parallel: Any):
        self._parallel = parallel
        self._by_parameter = parallel.name in ("none", "ddp", "swarm")
        self._models: list[Any] = []
        self._hooks: dict[Any, list[Any]] = {}
        self._held: dict[Any, Any] = {}
        self._micro: Micro | None = None
        self._syncing = True
        self._forwarded = False
        self.stepped = False
        """True if an optimizer made a step since the last batch was fetched."""
        self.is_replaying: Callable[[], bool] = lambda: False
        self.on_step: Callable[[], None] = lambda: None
        """Called before an optimizer changes parameters."""
        self.schedules = 0
        """Number of scheduler.step calls since the last pass ended."""
        self.replayed_schedules = 0
        """Number of scheduler.step calls after the last skipped pass that were made before the resume; -1: all."""

    @property
    def is_boundary(self) -> bool:
        return self._micro is None or self._micro.is_last

    def add_model(self, model: Any) -> None:
        self._models.append(model)
        if not self._by_parameter:
            model.register_forward_pre_hook(self._unweigh_input, with_kwargs=True)
            model.register_forward_hook(self._weigh_output)

    def add_optimizer(self, optimizer: Any) -> None:
        step, zero_grad = optimizer.step, optimizer.zero_grad

        def gated_step(_: Any, *args: Any, **options: Any) -> Any:
            if not self._opens():
                return None
            self._release()
            self.stepped = True
            return step(*args, **options)

        def gated_zero_grad(_: Any, *args: Any, **options: Any) -> None:
            if self._may_zero():
                zero_grad(*args, **options)

        if hasattr(step, "_wrapped_by_lr_sched"):
            gated_step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        optimizer.step = MethodType(gated_step, optimizer)
        optimizer.zero_grad = MethodType(gated_zero_grad, optimizer)
        optimizer.register_step_pre_hook(lambda *_: self.on_step())

    def add_scheduler(self, scheduler: Any) -> None:
        kind = type(scheduler)
        if not callable(getattr(kind, "step", None)):
            return

        def gated_step(own: Any, *args: Any, **options: Any) -> Any:
            if self.is_replaying():
                if self.replayed_schedules != 0:
                    self.replayed_schedules -= 1
                    return None
            elif not self.is_boundary:
                return None
            self.schedules += 1
            return kind.step(own, *args, **options)

        # A new class instead of a new attribute: a scheduler's state_dict is its __dict__. Pickling gives the original class.
        members = {
            "step": gated_step,
            "__module__": kind.__module__,
            "__reduce__": lambda own: (_again, (kind, vars(own))),
        }
        scheduler.__class__ = type(kind.__name__, (kind,), members)

    def add_scaler(self, scaler: Any) -> None:
        for name in ("step", "update", "unscale_"):
            inner = getattr(scaler, name)

            def gated(_: Any, *args: Any, _inner: Any = inner, _name: str = name, **options: Any) -> Any:
                if not self._opens():
                    return None
                if _name != "update":
                    self._release()
                self.stepped = self.stepped or _name == "step"
                return _inner(*args, **options)

            setattr(scaler, name, MethodType(gated, scaler))

    def begin(self, micro: Micro) -> None:
        """Begin the iteration on this micro-batch."""
        self._micro = micro
        self.stepped = self._forwarded = False
        if micro.is_last != self._syncing:
            self._syncing = micro.is_last
            for model in self._models:
                self._parallel.sync_gradients(model, on=micro.is_last)
        if self._by_parameter:
            self._set_hooks(micro.parts > 1 or micro.weight != 1.0)

    def abandon(self) -> None:
        """Drop the gradients kept of an incomplete global batch: the loop was left."""
        self._micro = None
        self._held.clear()
        if not self._syncing:
            self._syncing = True
            for model in self._models:
                self._parallel.sync_gradients(model, on=True)
        self._set_hooks(False)

    def _opens(self) -> bool:
        return self.is_boundary and not self.is_replaying()

    def _may_zero(self) -> bool:
        """Check whether zero_grad may clear the gradients: not while they hold those of earlier micro-batches."""
        micro = self._micro
        if self._by_parameter or micro is None or micro.parts == 1:
            return True
        return (micro.is_first and not self._forwarded) or (micro.is_last and self.stepped)

    def _set_hooks(self, on: bool) -> None:
        """Add or remove the hooks on the parameters. Ordinary iterations (one micro-batch of weight 1) need none."""
        if not on:
            for handles in self._hooks.values():
                for handle in handles:
                    handle.remove()
            self._hooks.clear()
            return
        for model in self._models:
            for parameter in model.parameters():
                if parameter.requires_grad and parameter not in self._hooks:
                    weigh = parameter.register_hook(self._weigher(parameter))
                    hold = parameter.register_post_accumulate_grad_hook(self._hold)
                    self._hooks[parameter] = [weigh, hold]

    def _weigher(self, parameter: Any) -> Callable[[Any], Any]:
        def weigh(gradient: Any) -> Any:
            micro = self._micro
            if micro is None:
                return gradient
            weighed = gradient if micro.weight == 1.0 else gradient * micro.weight
            if micro.is_last and (held := self._held.pop(parameter, None)) is not None:
                weighed = weighed + held
            return weighed

        return weigh

    def _hold(self, parameter: Any) -> None:
        if self._micro is None or self._micro.is_last or parameter.grad is None:
            return
        held = self._held.get(parameter)
        self._held[parameter] = parameter.grad if held is None else held.add_(parameter.grad)
        parameter.grad = None

    def _release(self) -> None:
        """Add the kept gradients of parameters that got no gradient in the last micro-batch."""
        while self._held:
            parameter, held = self._held.popitem()
            parameter.grad = held if parameter.grad is None else parameter.grad + held

    def _unweigh_input(self, model: Any, args: Any, kwargs: Any) -> Any:
        """Undo the weighting of inputs that are outputs of the same model, such as embeddings passed back to it.

        The gradient of such an input is weighted where it left the model; without this it would be weighted twice.
        """
        weight = self._weight_in(model)
        if weight == 1.0:
            return None
        factor = 1.0 / (weight or 1.0)
        return torch.utils._pytree.tree_map(lambda value: _weighed(value, factor), (args, kwargs))

    def _weigh_output(self, model: Any, inputs: Any, output: Any) -> Any:
        self._forwarded = True
        weight = self._weight_in(model)
        if weight == 1.0:
            return output
        return torch.utils._pytree.tree_map(lambda value: _weighed(value, weight), output)

    def _weight_in(self, model: Any) -> float:
        """Return the weight of the current micro-batch; 1 outside training."""
        micro = self._micro
        return micro.weight if micro is not None and torch.is_grad_enabled() and model.training else 1.0


def _again(kind: Any, state: dict[str, Any]) -> Any:
    """Rebuild a scheduler from its class and state. Pickled schedulers refer to this function by its name."""
    value = kind.__new__(kind)
    value.__dict__.update(state)
    return value


def _weighed(value: Any, weight: float) -> Any:
    """Return a view of the tensor whose gradient is multiplied by `weight`.

    A hook on the tensor itself would apply twice where one output feeds another.
    """
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return value
    through = value.view_as(value)
    through.register_hook(lambda gradient: gradient * weight)
    return through
