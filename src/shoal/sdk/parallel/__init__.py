"""Spreading one model over processes without changing the script: none, ddp, fsdp, pipeline, their meshes, and swarms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shoal.sdk.parallel.base import Parallel
from shoal.sdk.parallel.plan import Plan, read_plan

if TYPE_CHECKING:
    import torch

    from shoal.sdk.group import Ranks

__all__ = ["Parallel", "Plan", "make", "read_plan"]


def make(
    parallel: str,
    mesh: Mapping[str, int] | None,
    context: Ranks,
    device: torch.device,
    *,
    ddp: Mapping[str, Any] | None = None,
    swarm: Mapping[str, Any] | None = None,
) -> Parallel:
    """Collective. The way of parallelism that `parallel` and `mesh` ask for, on the world of `context`.

    Makes the process group if one is needed and there is none. `ddp`: more arguments of DistributedDataParallel; `swarm`:
    settings of the swarm, where no ticket has them.
    """
    if parallel == "swarm":
        from shoal.sdk.parallel.swarm import make_peer

        return make_peer(device, context.world_size, swarm)
    plan = read_plan(parallel, mesh, context.world_size)
    if plan.is_plain:
        from shoal.sdk.parallel.none import NoParallel

        return NoParallel(device)
    from shoal.sdk.group import ensure_group

    ensure_group(context, device)
    if plan.stages > 1:
        from shoal.sdk.parallel.pipeline import PipelineParallel

        return PipelineParallel(device, plan, context.rank)
    if plan.shards > 1:
        from shoal.sdk.parallel.fsdp import ShardedParallel

        return ShardedParallel(device, plan, context.rank)
    from shoal.sdk.parallel.ddp import DataParallel

    return DataParallel(device, context.rank, context.world_size, ddp or {})
