"""Which device this worker trains on and which backend its process group speaks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from shoal.core import device_promise
from shoal.core.errors import DeviceMissing

if TYPE_CHECKING:
    import torch

BACKENDS = {"cuda": "cpu:gloo,cuda:nccl", "xpu": "cpu:gloo,xpu:xccl"}
"""Device type → backend. ROCm calls itself cuda. CPU tensors always have gloo, whatever the accelerator speaks."""


def demand_promised() -> None:
    """Raise DeviceMissing if this job was placed on an accelerator that its torch, once imported, cannot use."""
    module = sys.modules.get("torch")
    if module is not None and (found := device_promise.broken(module)) is not None:
        raise DeviceMissing(str(found))


def choose_device(local_rank: int, wanted: str | torch.device | None = None, *, alone: bool = True) -> torch.device:
    """The device of this worker: `wanted`, or the accelerator with index `local_rank`, or the CPU.

    `alone` says that the world is one process: Apple's GPU has no collectives, so it is only chosen then.
    """
    import torch

    demand_promised()
    if wanted is not None:
        device = torch.device(wanted)
        if device.type in BACKENDS and device.index is None:
            device = _indexed(device.type, local_rank)
    elif torch.cuda.is_available():
        device = _indexed("cuda", local_rank)
    elif hasattr(torch, "xpu") and torch.xpu.is_available():
        device = _indexed("xpu", local_rank)
    elif alone and torch.backends.mps.is_available():
        device = torch.device("mps")
    else:
        device = torch.device("cpu")
    if device.type in BACKENDS:
        getattr(torch, device.type).set_device(device)
    return device


def backend_for(device: torch.device) -> str:
    """The backend for tensors on `device`; gloo where the accelerator has none of its own in this torch."""
    import torch.distributed as dist

    backend = BACKENDS.get(device.type, "gloo")
    if device.type == "cuda" and not dist.is_nccl_available():
        return "gloo"
    return backend


def _indexed(kind: str, local_rank: int) -> torch.device:
    """Launchers that show each worker a single device make every local rank's index 0."""
    import torch

    count = getattr(torch, kind).device_count()
    return torch.device(kind, local_rank % max(1, count))
