"""Observation of model calls: whole models, their mode, their data, and the first module that outputs NaN."""

from __future__ import annotations

from typing import Any

from .losses import is_finite
from .probe import Probe

_LOOKED_AT = 4
"""Number of forward passes in which every module is checked."""
_LARGEST = 1 << 24
"""Maximum number of elements of a batch that is kept for comparison."""


class Models:
    def __init__(self, torch: Any, probe: Probe):
        self._torch, self._probe = torch, probe
        self._depth = 0
        self._batch: Any = None
        """First tensor of the last training batch."""
        self._alike = self._compared = 0
        self._pending: Any = None
        """Last call with gradients enabled, until a backward pass shows that it was for training."""
        self.roots: dict[int, Any] = {}
        """Models that the script itself calls, in order, by id."""
        self.in_backward = False
        self.not_finite: str | None = None
        """Name of the first module with a finite input and an output that is not finite."""
        hooks = torch.nn.modules.module
        hooks.register_module_forward_pre_hook(self._before)
        hooks.register_module_forward_hook(self._after, always_call=True)
        probe.at_end.append(self._judge)

    def name_of(self, parameters: set[int]) -> list[str]:
        """Return the names of parameters (given by id) in the models."""
        found: dict[int, str] = {}
        for root in self.roots.values():
            for name, parameter in root.named_parameters():
                if id(parameter) in parameters:
                    found.setdefault(id(parameter), name.removeprefix("module."))
        return list(found.values())

    def trained(self) -> None:
        """Record after a backward pass that the last called model is trained."""
        self._depth = 0  # in case a call was left without its hook, such as by an exception
        if self._pending is None:
            return
        root, batch, was_training = self._pending
        self._pending = None
        if not was_training and _cares_for_mode(self._torch, root):
            told = f"{type(root).__name__} is trained in evaluation mode."
            self._probe.find("eval-mode", told)
        if batch is not None:
            if self._batch is not None and self._compared < _LOOKED_AT:
                self._compared += 1
                same = batch.shape == self._batch.shape and batch.dtype == self._batch.dtype
                self._alike += same and bool(self._torch.equal(batch, self._batch))
            self._batch = batch

    def _is_watched(self) -> bool:
        return self._probe.is_here and not self.in_backward and not self._torch.compiler.is_compiling()

    def _before(self, module: Any, args: Any) -> None:
        if not self._is_watched():
            return
        self._depth += 1
        if self._depth == 1 and next(module.parameters(), None) is not None:
            self._root_begins(module, args)

    def _after(self, module: Any, args: Any, output: Any) -> None:
        if not self._is_watched():
            return
        self._depth = max(0, self._depth - 1)
        looking = self.not_finite is None and self._probe.seen.forwards <= _LOOKED_AT
        if looking and not _finite(self._torch, output) and _finite(self._torch, args):
            self.not_finite = self._called(module)
        if self._depth == 0 and id(module) in self.roots:
            self._probe.reach("forward")

    def _root_begins(self, module: Any, args: Any) -> None:
        torch, probe = self._torch, self._probe
        self.roots.setdefault(id(module), module)
        probe.seen.forwards += 1
        tensors = [t for a in args for t in _tensors(torch, a)]
        if probe.seen.forwards <= _LOOKED_AT:
            self._check_for_nan(module, tensors)
        if torch.is_grad_enabled():
            first = tensors[0] if tensors and tensors[0].numel() <= _LARGEST else None
            self._pending = (module, None if first is None else first.detach().clone(), module.training)
            return
        probe.seen.evaluations += 1
        if probe.seen.steps:
            probe.reach("evaluation")
            if module.training and _cares_for_mode(torch, module):
                probe.find("train-mode", f"{type(module).__name__} is evaluated in training mode.", where=probe.here())

    def _check_for_nan(self, module: Any, tensors: list[Any]) -> None:
        """Record NaN in a batch. Infinite values are allowed, as masks use them."""
        for tensor in tensors:
            if tensor.is_floating_point() and (count := int(self._torch.isnan(tensor).sum())):
                told = f"The batch of shape {list(tensor.shape)} for {type(module).__name__} has {count} NaN values."
                self._probe.find("data-not-finite", told, where=self._probe.here())

    def _called(self, module: Any) -> str:
        for root in self.roots.values():
            for name, part in root.named_modules():
                if part is module:
                    return f"{name or 'the model'} ({type(module).__name__})"
        return type(module).__name__

    def _judge(self) -> None:
        batches = self._probe.most_batches
        if batches > 1 and self._compared >= 2 and self._alike == self._compared:
            told = f"{self._alike + 1} batches in a row were equal, though the loader has {batches}."
            self._probe.find("same-batch", told)


def _finite(torch: Any, value: Any) -> bool:
    return all(is_finite(torch, tensor) for tensor in _tensors(torch, value))


def _tensors(torch: Any, value: Any, depth: int = 3) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    if depth and isinstance(value, list | tuple):
        return [t for v in value for t in _tensors(torch, v, depth - 1)]
    if depth and isinstance(value, dict):
        return [t for v in value.values() for t in _tensors(torch, v, depth - 1)]
    return []


def _cares_for_mode(torch: Any, module: Any) -> bool:
    nn = torch.nn
    return any(
        (isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0)
        or isinstance(part, nn.modules.batchnorm._BatchNorm)
        for part in module.modules()
    )
