"""The process group of a run: made only if the script has none, closed only if we made it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import Store
    from torch.distributed import ProcessGroup

logger = logging.getLogger(__name__)


class Ranks(Protocol):
    """What is needed of the run's context."""

    @property
    def rank(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...


_ours = False
_objects: ProcessGroup | None = None


def ensure_group(context: Ranks, device: torch.device) -> bool:
    """Collective. Make the process group if the world is larger than one and there is none; whether there is one now."""
    global _ours
    import torch.distributed as dist

    if not dist.is_available() or (context.world_size <= 1 and not dist.is_initialized()):
        return False
    if not dist.is_initialized():
        from shoal.sdk.device import backend_for

        dist.init_process_group(backend_for(device), rank=context.rank, world_size=context.world_size)
        _ours = True
    object_group()
    return True


def close_group() -> None:
    """Forget our groups; the default group is destroyed only if `ensure_group` made it."""
    global _ours, _objects
    import torch.distributed as dist

    _objects = None
    if _ours and dist.is_initialized():
        dist.destroy_process_group()
    _ours = False


def object_group() -> ProcessGroup | None:
    """Collective at its first call. A gloo group of all ranks for CPU objects, apart from the gradients' traffic.

    None without a process group. Call it from one thread only: two threads on one group get each other's messages.
    """
    global _objects
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return None
    if _objects is None:
        _objects = dist.new_group(backend="gloo")
    return _objects


def store() -> Store | None:
    """A connection of its own to the group's store, safe to use from a background thread; None without a group."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return None
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    base: Any = dist.distributed_c10d._get_default_store()
    while isinstance(base, PrefixStore):
        base = base.underlying_store
    if isinstance(base, TCPStore):
        base = TCPStore(base.host, base.port, is_master=False, wait_for_workers=False)
    return PrefixStore("shoal", base)
