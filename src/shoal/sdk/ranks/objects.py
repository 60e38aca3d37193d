"""Exchange of Python objects between the ranks in `prepare`, through their gloo group. Every rank makes the same calls."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from shoal.sdk.ranks import group

dist: Any = import_module("torch.distributed")


class Objects:
    """Collective exchange of objects that can be pickled. Without a process group there is one rank."""

    def __init__(self, rank: int):
        self.rank = rank

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in their order."""
        objects = group.object_group()
        if objects is None:
            return [value]
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, value, group=objects)
        return found

    def from_main(self, value: Any) -> Any:
        """Return the value of rank 0."""
        objects = group.object_group()
        if objects is None:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=objects)
        return box[0]
