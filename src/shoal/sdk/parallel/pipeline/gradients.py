"""Gradients after the backward of a pipeline: summed over stages, averaged over replicas, norms exchanged.

Parameters outside the blocks are on every stage and collect a part of their gradient on each. A parameter of another stage
is represented by one element whose gradient is the norm of the real one: clipping by norm over `model.parameters()`, and a
scaler's search for infinities, then give the same result on every stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from shoal.sdk.ranks.group import object_group

BUCKET_BYTES = 25 * 1024 * 1024
SHARED = -1
"""Owner of a parameter that is on every stage."""


class Gradients:
    def __init__(
        self,
        params: Sequence[nn.Parameter],
        owners: Sequence[int],
        stage: int,
        stage_group: dist.ProcessGroup,
        replica_group: dist.ProcessGroup | None,
    ) -> None:
        self.on = True
        """True if the gradients of the next backward are exchanged."""
        self._stage = stage
        self._stage_group, self._replica_group = stage_group, replica_group
        self._params, self._owners = list(params), list(owners)
        self._exchanged = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Gradients:
        return self

    def before_backward(self) -> None:
        """Keep gradients that are already summed over the stages on one stage only, so that they are not summed again."""
        if self._exchanged and self._stage > 0:
            for param, owner in zip(self._params, self._owners, strict=True):
                if owner == SHARED:
                    param.grad = None
        self._exchanged = False

    def after_backward(self) -> None:
        if not self.on:
            return
        used = self._used()
        shared = [param for param, owner, flag in self._rows(used) if owner == SHARED and flag]
        here = [param for param, owner, flag in self._rows(used) if owner in (SHARED, self._stage) and flag]
        for param in here:
            if param.grad is None:
                param.grad = torch.zeros_like(param)
        _reduce([param.grad for param in shared], self._stage_group, 1)
        if self._replica_group is not None:
            _reduce([param.grad for param in here], self._replica_group, dist.get_world_size(self._replica_group))
        self._exchange_norms(used)
        self._exchanged = True

    def _rows(self, used: list[bool]) -> Any:
        return zip(self._params, self._owners, used, strict=True)

    def _used(self) -> list[bool]:
        """Return for each parameter whether it has a gradient on any stage of any replica."""
        flags = torch.zeros(len(self._params), dtype=torch.int32)
        for index, (param, owner) in enumerate(zip(self._params, self._owners, strict=True)):
            flags[index] = int(owner in (SHARED, self._stage) and param.grad is not None)
        dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=object_group())
        return [bool(flag) for flag in flags.tolist()]

    def _exchange_norms(self, used: list[bool]) -> None:
        mine = [index for index, (_, owner, flag) in enumerate(self._rows(used)) if owner == self._stage and flag]
        device = self._params[0].device
        norms = torch.zeros(len(self._params), dtype=torch.float32, device=device)
        if mine:
            # The same function as in clip_grad_norm_, so that all stages get bit-identical results.
            grads: list[Any] = [self._params[index].grad for index in mine]
            values = torch._foreach_norm(grads)
            norms[mine] = torch.stack([value.to(device, torch.float32) for value in values])
        dist.all_reduce(norms, group=self._stage_group)
        for index, (param, owner, flag) in enumerate(self._rows(used)):
            if owner not in (SHARED, self._stage):
                param.grad = norms[index].reshape(param.shape).clone() if flag else None


def _reduce(grads: Sequence[Any], group: dist.ProcessGroup, divide_by: int) -> None:
    """Sum gradients over the group in buckets of one dtype, then divide."""
    buckets: dict[torch.dtype, list[torch.Tensor]] = {}
    for grad in grads:
        bucket = buckets.setdefault(grad.dtype, [])
        bucket.append(grad)
        if sum(item.numel() * item.element_size() for item in bucket) >= BUCKET_BYTES:
            _reduce_bucket(buckets.pop(grad.dtype), group, divide_by)
    for bucket in buckets.values():
        _reduce_bucket(bucket, group, divide_by)


def _reduce_bucket(grads: list[torch.Tensor], group: dist.ProcessGroup, divide_by: int) -> None:
    flat = torch.cat([grad.reshape(-1) for grad in grads])
    dist.all_reduce(flat, group=group)
    if divide_by > 1:
        flat /= divide_by
    for grad, part in zip(grads, torch.split(flat, [grad.numel() for grad in grads]), strict=True):
        grad.copy_(part.view_as(grad))
