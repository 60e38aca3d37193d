"""Data parallelism: every process holds the whole model, gradients are averaged during backward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from shoal.sdk.parallel.base import State
from shoal.sdk.parallel.names import compiled_from
from shoal.sdk.parallel.none import NoParallel
from shoal.sdk.parallel.placed import is_placed
from shoal.sdk.parallel.start import from_first


class DataParallel(NoParallel):
    name = "ddp"

    def __init__(
        self, device: torch.device, rank: int, world_size: int, options: Mapping[str, Any] | None = None
    ) -> None:
        """Set rank and world size; `options` are more arguments of DistributedDataParallel."""
        super().__init__(device)
        self.data_rank, self.data_world, self._rank = rank, world_size, rank
        # Gradients are views of the communication buckets, so they are not allocated and copied in every step.
        self._options = {"gradient_as_bucket_view": True, **(options or {})}

    def wrap(self, model: nn.Module) -> nn.Module:
        if _ddp_of(model) is not None:
            return model
        model = super().wrap(model)
        if not any(param.requires_grad for param in model.parameters()):
            return model
        # A placed model may be on other devices, or on several: DDP then takes its inputs as they are.
        devices = None if self.device.type == "cpu" or is_placed(model) else [self.device]
        return DistributedDataParallel(model, device_ids=devices, **self._options)

    def _seed(self) -> int:
        return from_first(torch.initial_seed())

    def unwrap(self, model: nn.Module) -> nn.Module:
        found = _ddp_of(model)
        return model if found is None else found.module

    def sync_gradients(self, model: nn.Module, on: bool) -> None:
        found = _ddp_of(model)
        if found is not None:
            found.require_backward_grad_sync = on

    def full_state(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> tuple[State, list[State]] | None:
        return super().full_state(model, optimizers) if self._rank == 0 else None


def _ddp_of(model: nn.Module) -> DistributedDataParallel | None:
    """Return the wrapper that the script or `wrap` made, also if it is compiled; None if there is none."""
    for found in (model, compiled_from(model)):
        if isinstance(found, DistributedDataParallel):
            return found
    return None
