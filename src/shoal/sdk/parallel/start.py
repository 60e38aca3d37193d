"""Give every rank the initial weights of rank 0, whatever seeds the script used."""

from __future__ import annotations

from itertools import chain

import torch
import torch.distributed as dist
from torch import nn

from shoal.sdk.ranks.group import object_group


def same_start(model: nn.Module) -> None:
    """Copy parameters and buffers of rank 0 to all ranks, on the device they are on (usually the CPU). Collective."""
    with torch.no_grad():
        for tensor in chain(model.parameters(), model.buffers()):
            if tensor.is_meta:
                continue
            group = object_group() if tensor.device.type == "cpu" else None
            whole = tensor.data.contiguous()
            dist.broadcast(whole, src=0, group=group)
            if whole.data_ptr() != tensor.data.data_ptr():
                tensor.data.copy_(whole)


def from_first(number: int) -> int:
    """Return the number of rank 0. Collective."""
    box = [number]
    dist.broadcast_object_list(box, src=0, group=object_group())
    return box[0]
