"""The process group that TopSpin scripts take for granted: `dist.get_rank()` works in every mode, in debug mode too."""

from __future__ import annotations

import atexit
import os
from importlib import import_module
from typing import Any

from shoal.sdk.device import backend_for, choose_device
from shoal.train.probe import free_gpus, gpus


def ensure_group(use_gpu: bool) -> Any:
    """Collective. Makes the group unless there is one; the device of this worker."""
    dist: Any = import_module("torch.distributed")
    world = int(os.environ.get("WORLD_SIZE") or 1)
    wanted = (_free_gpu() if world == 1 else None) if use_gpu else "cpu"
    device = choose_device(int(os.environ.get("LOCAL_RANK") or 0), wanted, alone=world == 1)
    if dist.is_available() and not dist.is_initialized():
        if world > 1:
            dist.init_process_group(backend_for(device))
        else:
            # A store within the process: no port, no address, nothing to wait for.
            dist.init_process_group(backend_for(device), store=dist.HashStore(), rank=0, world_size=1)
        atexit.register(_close)
    return device


def _free_gpu() -> str | None:
    """For a script that is run by itself; starters have chosen already."""
    if "DIST_RUN" in os.environ or "CUDA_VISIBLE_DEVICES" in os.environ:
        return None
    free = free_gpus(gpus())
    return f"cuda:{free[0]}" if free else None


def _close() -> None:
    dist: Any = import_module("torch.distributed")
    if dist.is_initialized():
        dist.destroy_process_group()
