"""Mixed precision: none, bf16, or fp16 with a scaled loss."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

torch: Any = import_module("torch")


class Precision:
    """Autocast and loss scaling of a training."""

    def __init__(self, kind: str, device: Any):
        self._device = device.type
        self._dtype = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}[kind]
        self.scaler = torch.amp.GradScaler(self._device, enabled=kind == "fp16")

    @property
    def scales(self) -> bool:
        """True if the loss is scaled; the scaler's state must then be saved with the training."""
        return bool(self.scaler.is_enabled())

    def forward(self) -> AbstractContextManager[Any]:
        """Return the autocast context of a forward pass."""
        return nullcontext() if self._dtype is None else torch.autocast(self._device, dtype=self._dtype)

    def backward(self, loss: Any) -> None:
        """Run the backward pass of a loss, scaled if necessary."""
        self.scaler.scale(loss).backward()

    def unscale(self, optimizer: Any) -> None:
        """Remove the scale from the gradients, before clipping."""
        if self.scales:
            self.scaler.unscale_(optimizer)

    def step(self, optimizer: Any) -> bool:
        """Step the optimizer; return False if fp16 gradients overflowed and the step was skipped."""
        if not self.scales:
            optimizer.step()
            return True
        before = self.scaler.get_scale()
        self.scaler.step(optimizer)
        self.scaler.update()
        return bool(self.scaler.get_scale() >= before)
