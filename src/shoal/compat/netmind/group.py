"""Process group for `nmp.init(use_ddp=True)`, also for a script with a single worker that wraps its model in DDP."""

from __future__ import annotations

import atexit
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.sdk.run import Run


def ensure_group(run: Run) -> None:
    """Create the process group unless there is one; it lasts until the process ends. Collective."""
    from shoal.sdk.device import backend_for, group_options

    dist: Any = import_module("torch.distributed")
    if not dist.is_available() or dist.is_initialized():
        return
    if run.world_size > 1:
        dist.init_process_group(**group_options(run.device), rank=run.rank, world_size=run.world_size)
    else:
        # A store inside the process needs no port and no address.
        dist.init_process_group(backend_for(run.device), store=dist.HashStore(), rank=0, world_size=1)
    atexit.register(_close)


def _close() -> None:
    dist: Any = import_module("torch.distributed")
    if dist.is_initialized():
        dist.destroy_process_group()
