"""Detect two silent mistakes of distributed scripts: training the unwrapped model, and reading the same data on every rank.

Usage: `warn = warner(spool, context.rank)` once; after `wrapped = parallel.wrap(model)`, call
`watch_model(wrapped, parallel.unwrap(wrapped), warn)`. If the script's loader was not prepared, also call
`watch = watch_batches(wrapped)`, and `check_batches(watch, parallel.data_rank, warn)` on every rank after the first global
step (collective).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shoal.core import records

if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger(__name__)

Warn = Callable[[str, str], None]
"""Function that gets a stable code and a text that says how to fix the problem."""

TRUSTED_AFTER = 100
"""Number of forward passes through the wrapper after which the check is removed."""

BARE_MODEL = (
    "The original model was trained instead of the one that run.prepare returned, so its gradients are not shared "
    "between the {world} workers and their weights drift apart. Use the returned model: "
    "`model, optimizer, loader = run.prepare(model, optimizer, loader)`."
)
SAME_DATA = (
    "Every worker reads the same data: workers {ranks} had the same first batch, so they all compute the same gradients. "
    "Pass the loader to run.prepare, or use a DistributedSampler."
)
DIFFERENT_DATA = (
    "The stages of one pipeline read different data: workers {ranks} had different first batches. "
    "Pass the loader to run.prepare, or make every stage read the same batches."
)


def warner(spool: Any, rank: int) -> Warn:
    """Return a function that writes warnings to the spool and, on rank 0, to the script's stderr."""

    def warn(code: str, text: str) -> None:
        spool.put(records.Warning(code=code, text=text))
        if rank == 0:
            warnings.warn(f"shoal: {text}", UserWarning, stacklevel=3)

    return warn


def watch_model(wrapped: nn.Module, inner: nn.Module, warn: Warn) -> None:
    """Warn once when `inner` is called for training without going through `wrapped`. Does nothing if they are the same."""
    import torch
    import torch.distributed as dist

    if wrapped is inner or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    passing, passed = False, 0

    def entering(*_: Any) -> None:
        nonlocal passing
        passing = True

    def reached(*_: Any) -> None:
        nonlocal passing, passed
        if passing:
            passing, passed = False, passed + 1
            if passed >= TRUSTED_AFTER:
                stop()
        elif inner.training and torch.is_grad_enabled():
            stop()
            warn("bare_model", BARE_MODEL.format(world=dist.get_world_size()))

    hooks = [wrapped.register_forward_pre_hook(entering), inner.register_forward_pre_hook(reached)]

    def stop() -> None:
        for hook in hooks:
            hook.remove()


class BatchWatch:
    """Fingerprint of the first batch a model was trained on; None until then."""

    def __init__(self) -> None:
        self.digest: int | None = None


def watch_batches(wrapped: nn.Module) -> BatchWatch:
    """Record a fingerprint of the first training batch that `wrapped` is called with."""
    import torch

    watch = BatchWatch()

    def called(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not (module.training and torch.is_grad_enabled()):
            return
        hook.remove()
        from shoal.sdk.parallel.digest import digest
        from shoal.sdk.parallel.pipeline.tree import flatten

        tensors: list[torch.Tensor] = []
        flatten((args, kwargs), tensors)
        watch.digest = digest(tensors) if tensors else None

    hook = wrapped.register_forward_pre_hook(called, with_kwargs=True)
    return watch


def check_batches(watch: BatchWatch, data_rank: int, warn: Warn) -> None:
    """Compare the first batches of all ranks: those with different data ranks should differ. Collective."""
    import torch.distributed as dist

    from shoal.sdk.ranks.group import object_group

    group = object_group()
    if group is None or dist.get_world_size() == 1:
        return
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, (data_rank, watch.digest), group=group)
    for code, text in judge_batches(found):
        warn(code, text)


def judge_batches(found: list[tuple[int, int | None]]) -> list[tuple[str, str]]:
    """Return (code, text) of the problems found in the (data rank, fingerprint) of each rank. Pure."""
    if any(digest is None for _, digest in found):
        return []
    first: dict[int, int | None] = {}
    odd = [rank for rank, (share, digest) in enumerate(found) if first.setdefault(share, digest) != digest]
    if odd:
        return [("different_data", DIFFERENT_DATA.format(ranks=", ".join(map(str, [0, *odd]))))]
    if len(first) > 1 and len(set(first.values())) == 1:
        ranks = ", ".join(str(rank) for rank in range(len(found)))
        return [("same_data", SAME_DATA.format(ranks=ranks))]
    return []
