"""Every rank starts from rank 0's weights, whatever seeds the script used."""

from __future__ import annotations

from itertools import chain

import torch
import torch.distributed as dist
from torch import nn

from shoal.sdk.group import object_group


def same_start(model: nn.Module) -> None:
    """Collective. Copy parameters and buffers of rank 0 to all ranks, where they are (on the CPU, usually)."""
    with torch.no_grad():
        for tensor in chain(model.parameters(), model.buffers()):
            if tensor.is_meta:
                continue
            group = object_group() if tensor.device.type == "cpu" else None
            whole = tensor.data.contiguous()
            dist.broadcast(whole, src=0, group=group)
            if whole.data_ptr() != tensor.data.data_ptr():
                tensor.data.copy_(whole)
