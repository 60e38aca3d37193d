"""Process group of a run: created only if the script has none, closed only if it was created here."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import Store
    from torch.distributed import ProcessGroup

logger = logging.getLogger(__name__)


class Ranks(Protocol):
    """The part of Context that is used here."""

    @property
    def rank(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...


_ours = False
_objects: ProcessGroup | None = None


def ensure_group(context: Ranks, device: torch.device) -> bool:
    """Create the process group if there are several ranks and there is none. Return whether there is one. Collective."""
    global _ours
    import torch.distributed as dist

    if not dist.is_available() or (context.world_size <= 1 and not dist.is_initialized()):
        return False
    if not dist.is_initialized():
        from shoal.sdk.device import group_options

        dist.init_process_group(**group_options(device), rank=context.rank, world_size=context.world_size)
        _ours = True
    object_group()
    return True


def close_group() -> None:
    """Drop our groups; destroy the default group only if `ensure_group` created it."""
    global _ours, _objects
    import torch.distributed as dist

    _objects = None
    if _ours and dist.is_initialized():
        dist.destroy_process_group()
    _ours = False


def object_group() -> ProcessGroup | None:
    """Return a gloo group of all ranks for CPU objects, separate from the traffic of gradients; None without ranks.

    The first call is collective. Use it from one thread only: two threads on one group get each other's messages.
    """
    global _objects
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return None
    if _objects is None:
        _objects = dist.new_group(backend="gloo")
    return _objects


def store() -> Store | None:
    """Open a separate connection to the group's store, for use in a background thread; None without a group."""
    if "torch.distributed" not in sys.modules:
        return None  # importing it here may take longer than the script, whose exit would then wait for this thread for ever
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
