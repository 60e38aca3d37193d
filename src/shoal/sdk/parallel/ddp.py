"""Data parallel: every process holds the whole model, gradients are averaged during backward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from shoal.sdk.parallel.base import State
from shoal.sdk.parallel.none import NoParallel


class DataParallel(NoParallel):
    name = "ddp"

    def __init__(
        self, device: torch.device, rank: int, world_size: int, options: Mapping[str, Any] | None = None
    ) -> None:
        """`options`: more arguments of DistributedDataParallel."""
        super().__init__(device)
        self.data_rank, self.data_world, self._rank = rank, world_size, rank
        # Gradients live in the memory they are exchanged from: neither allocated nor copied again in every step.
        self._options = {"gradient_as_bucket_view": True, **(options or {})}

    def wrap(self, model: nn.Module) -> nn.Module:
        if isinstance(model, DistributedDataParallel):
            return model
        model = model.to(self.device)
        if not any(param.requires_grad for param in model.parameters()):
            return model
        devices = None if self.device.type == "cpu" else [self.device]
        return DistributedDataParallel(model, device_ids=devices, **self._options)

    def unwrap(self, model: nn.Module) -> nn.Module:
        return model.module if isinstance(model, DistributedDataParallel) else model

    def sync_gradients(self, model: nn.Module, on: bool) -> None:
        if isinstance(model, DistributedDataParallel):
            model.require_backward_grad_sync = on

    def full_state(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> tuple[State, list[State]] | None:
        return super().full_state(model, optimizers) if self._rank == 0 else None
