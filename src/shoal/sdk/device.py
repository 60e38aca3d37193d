"""Choose the device this worker trains on and the backend of its process group."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from shoal.core import device_check
from shoal.core.errors import DeviceMissing

if TYPE_CHECKING:
    import torch

BACKENDS = {"cuda": "cpu:gloo,cuda:nccl", "xpu": "cpu:gloo,xpu:xccl"}
"""Device type → backend. ROCm devices have type cuda. CPU tensors always use gloo."""

GROUP_TIMEOUT = "SHOAL_GROUP_TIMEOUT_S"
"""Variable with the seconds after which a collective fails; without it torch's own limits hold."""


def demand_promised() -> None:
    """Raise DeviceMissing if this job was placed on an accelerator that its torch, once imported, cannot use."""
    module = sys.modules.get("torch")
    if module is not None and (found := device_check.broken(module)) is not None:
        raise DeviceMissing(str(found))


def choose_device(local_rank: int, wanted: str | torch.device | None = None, *, alone: bool = True) -> torch.device:
    """Return the device of this worker: `wanted`, else the accelerator with index `local_rank`, else the CPU.

    Apple's GPU is chosen only if `alone` (the world is one process), because it has no collectives.
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
    """Return the backend for tensors on `device`; gloo if this torch has no backend for the accelerator."""
    import torch.distributed as dist

    backend = BACKENDS.get(device.type, "gloo")
    if device.type == "cuda" and not dist.is_nccl_available():
        return "gloo"
    return backend


def group_options(device: torch.device) -> dict[str, Any]:
    """Return the arguments of `init_process_group` for workers on this device: backend, device and time limit.

    With its device NCCL connects at once, so that a broken link is an error at the start, and no barrier guesses a GPU.
    """
    backend = backend_for(device)
    options: dict[str, Any] = {"backend": backend}
    if "nccl" in backend and device.index is not None:
        options["device_id"] = device
    if limit_s := os.environ.get(GROUP_TIMEOUT):
        options["timeout"] = timedelta(seconds=float(limit_s))
    return options


def _indexed(kind: str, local_rank: int) -> torch.device:
    """Return the device with index `local_rank`; index 0 if the launcher shows each worker a single device."""
    import torch

    count = getattr(torch, kind).device_count()
    return torch.device(kind, local_rank % max(1, count))
