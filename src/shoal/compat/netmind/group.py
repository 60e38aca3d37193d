"""The process group `nmp.init(use_ddp=True)` promises, also to a script that runs alone and wraps its model in DDP anyway."""

from __future__ import annotations

import atexit
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.sdk.run import Run


def ensure_group(run: Run) -> None:
    """Collective. Leaves a group that is already there alone; ours lasts until the process ends."""
    from shoal.sdk.device import backend_for

    dist: Any = import_module("torch.distributed")
    if not dist.is_available() or dist.is_initialized():
        return
    if run.world_size > 1:
        dist.init_process_group(backend_for(run.device), rank=run.rank, world_size=run.world_size)
    else:
        # A store within the process: no port, no address, nothing to wait for.
        dist.init_process_group(backend_for(run.device), store=dist.HashStore(), rank=0, world_size=1)
    atexit.register(_close)


def _close() -> None:
    dist: Any = import_module("torch.distributed")
    if dist.is_initialized():
        dist.destroy_process_group()
