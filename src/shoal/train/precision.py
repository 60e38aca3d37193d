"""Mixed precision: none, bf16, or fp16 with a scaled loss."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

torch: Any = import_module("torch")


class Precision:
    def __init__(self, kind: str, device: Any):
        self._device = device.type
        self._dtype = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}[kind]
        self.scaler = torch.amp.GradScaler(self._device, enabled=kind == "fp16")

    @property
    def scales(self) -> bool:
        """Whether there is a scaler, whose state belongs to the training's."""
        return bool(self.scaler.is_enabled())

    def forward(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._dtype is None else torch.autocast(self._device, dtype=self._dtype)

    def backward(self, loss: Any) -> None:
        self.scaler.scale(loss).backward()

    def unscale(self, optimizer: Any) -> None:
        if self.scales:
            self.scaler.unscale_(optimizer)

    def step(self, optimizer: Any) -> bool:
        """Whether the optimizer stepped; with fp16 it does not when a gradient has overflowed."""
        if not self.scales:
            optimizer.step()
            return True
        before = self.scaler.get_scale()
        self.scaler.step(optimizer)
        self.scaler.update()
        return bool(self.scaler.get_scale() >= before)
