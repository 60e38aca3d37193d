"""Models as they are called: which are whole ones, in which mode, with what data, and where the first NaN comes from."""

from __future__ import annotations

from typing import Any

from .losses import is_finite
from .trial import Trial

_LOOKED_AT = 4
"""Whole forward passes whose every part is looked at."""
_LARGEST = 1 << 24
"""Elements of a batch that is kept to be compared."""


class Models:
    def __init__(self, torch: Any, trial: Trial):
        self._torch, self._trial = torch, trial
        self._depth = 0
        self._batch: Any = None
        """The first tensor of the last batch trained on."""
        self._alike = self._compared = 0
        self._pending: Any = None
        """Called with gradients, and not known yet to be for training."""
        self.roots: dict[int, Any] = {}
        """Those that are called by the script itself, in order."""
        self.in_backward = False
        self.not_finite: str | None = None
        """The first part that made something not finite of what was."""
        hooks = torch.nn.modules.module
        hooks.register_module_forward_pre_hook(self._before)
        hooks.register_module_forward_hook(self._after, always_call=True)
        trial.at_end.append(self._judge)

    def name_of(self, parameters: set[int]) -> list[str]:
        """What the models call these (by id)."""
        found: dict[int, str] = {}
        for root in self.roots.values():
            for name, parameter in root.named_parameters():
                if id(parameter) in parameters:
                    found.setdefault(id(parameter), name.removeprefix("module."))
        return list(found.values())

    def trained(self) -> None:
        """A backward pass has ended: what was called before it is trained."""
        self._depth = 0  # should a call have been left without its end
        if self._pending is None:
            return
        root, batch, was_training = self._pending
        self._pending = None
        if not was_training and _cares_for_mode(self._torch, root):
            told = f"{type(root).__name__} is trained in evaluation mode."
            self._trial.find("eval-mode", told)
        if batch is not None:
            if self._batch is not None and self._compared < _LOOKED_AT:
                self._compared += 1
                same = batch.shape == self._batch.shape and batch.dtype == self._batch.dtype
                self._alike += same and bool(self._torch.equal(batch, self._batch))
            self._batch = batch

    def _is_watched(self) -> bool:
        return self._trial.is_here and not self.in_backward and not self._torch.compiler.is_compiling()

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
        looking = self.not_finite is None and self._trial.seen.forwards <= _LOOKED_AT
        if looking and not _finite(self._torch, output) and _finite(self._torch, args):
            self.not_finite = self._called(module)
        if self._depth == 0 and id(module) in self.roots:
            self._trial.reach("forward")

    def _root_begins(self, module: Any, args: Any) -> None:
        torch, trial = self._torch, self._trial
        self.roots.setdefault(id(module), module)
        trial.seen.forwards += 1
        tensors = [t for a in args for t in _tensors(torch, a)]
        if trial.seen.forwards <= _LOOKED_AT:
            self._look_for_nan(module, tensors)
        if torch.is_grad_enabled():
            first = tensors[0] if tensors and tensors[0].numel() <= _LARGEST else None
            self._pending = (module, None if first is None else first.detach().clone(), module.training)
            return
        trial.seen.evaluations += 1
        if trial.seen.steps:
            trial.reach("evaluation")
            if module.training and _cares_for_mode(torch, module):
                trial.find("train-mode", f"{type(module).__name__} is evaluated in training mode.", where=trial.here())

    def _look_for_nan(self, module: Any, tensors: list[Any]) -> None:
        """Infinite ones may be meant: masks are full of them."""
        for tensor in tensors:
            if tensor.is_floating_point() and (count := int(self._torch.isnan(tensor).sum())):
                told = f"Of the batch of {list(tensor.shape)} given to {type(module).__name__}, {count} values are NaN."
                self._trial.find("data-not-finite", told, where=self._trial.here())

    def _called(self, module: Any) -> str:
        for root in self.roots.values():
            for name, part in root.named_modules():
                if part is module:
                    return f"{name or 'the model'} ({type(module).__name__})"
        return type(module).__name__

    def _judge(self) -> None:
        batches = self._trial.most_batches
        if batches > 1 and self._compared >= 2 and self._alike == self._compared:
            told = f"{self._alike + 1} batches in a row were equal, of {batches} there are."
            self._trial.find("same-batch", told)


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
