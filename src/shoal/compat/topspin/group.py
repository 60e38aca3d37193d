"""Process group that TopSpin scripts rely on: `dist.get_rank()` works in every mode, also in debug mode."""

from __future__ import annotations

import atexit
import os
from importlib import import_module
from typing import Any

from shoal.sdk.device import backend_for, choose_device, group_options
from shoal.train.probe import free_gpus, gpus


def ensure_group(use_gpu: bool) -> Any:
    """Create the process group unless there is one, and return this worker's device. Collective."""
    dist: Any = import_module("torch.distributed")
    world = int(os.environ.get("WORLD_SIZE") or 1)
    wanted = (_free_gpu() if world == 1 else None) if use_gpu else "cpu"
    device = choose_device(int(os.environ.get("LOCAL_RANK") or 0), wanted, alone=world == 1)
    if dist.is_available() and not dist.is_initialized():
        if world > 1:
            dist.init_process_group(**group_options(device))
        else:
            # A store inside the process needs no port and no address.
            dist.init_process_group(backend_for(device), store=dist.HashStore(), rank=0, world_size=1)
        atexit.register(_close)
    return device


def _free_gpu() -> str | None:
    """Return a free GPU for a script that runs by itself; None if a starter has chosen one."""
    if "DIST_RUN" in os.environ or "CUDA_VISIBLE_DEVICES" in os.environ:
        return None
    free = free_gpus(gpus())
    return f"cuda:{free[0]}" if free else None


def _close() -> None:
    dist: Any = import_module("torch.distributed")
    if dist.is_initialized():
        dist.destroy_process_group()
