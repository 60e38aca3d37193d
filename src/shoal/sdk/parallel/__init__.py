"""Kinds of parallelism that need no change in the script: none, ddp, fsdp, tp, cp, pipeline, their meshes, and swarms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shoal.sdk.parallel.base import Parallel
from shoal.sdk.parallel.plan import Plan, read_plan
from shoal.sdk.parallel.tuning import Tuning, refuse

if TYPE_CHECKING:
    import torch

    from shoal.sdk.parallel.tensor_plan import OwnPlan
    from shoal.sdk.ranks.group import Ranks

__all__ = ["Parallel", "Plan", "make", "read_plan"]


def make(
    parallel: str,
    mesh: Mapping[str, int] | None,
    context: Ranks,
    device: torch.device,
    *,
    ddp: Mapping[str, Any] | None = None,
    swarm: Mapping[str, Any] | None = None,
    tuning: Tuning | None = None,
    tp_plan: OwnPlan | None = None,
) -> Parallel:
    """Return the parallelism that `parallel` and `mesh` ask for, for the ranks of `context`. Collective.

    Creates the process group if one is needed and there is none.

    Args:
        parallel: "auto", "ddp", "fsdp", "pipeline", "none" or "swarm".
        mesh: Sizes of a combination, such as {"ddp": 2, "fsdp": 2, "tp": 2}.
        context: Rank and world size of this process.
        device: Device of this process.
        ddp: More arguments of DistributedDataParallel.
        swarm: Settings of the swarm that its ticket does not contain.
        tuning: Precision, recomputed activations and compilation.
        tp_plan: Function that returns how tensor parallelism divides a model's modules.
    """
    tuning = tuning or Tuning()
    made = _make(parallel, mesh, context, device, ddp, swarm, tp_plan)
    if made.name in ("pipeline", "swarm"):
        refuse(tuning, made.name)
    elif not made.is_sharded:
        refuse(tuning, made.name, only_precision=True)
    made.tuning = tuning
    if not hasattr(made, "random_rank"):
        made.random_rank = context.rank
    return made


def _make(
    parallel: str,
    mesh: Mapping[str, int] | None,
    context: Ranks,
    device: torch.device,
    ddp: Mapping[str, Any] | None,
    swarm: Mapping[str, Any] | None,
    tp_plan: OwnPlan | None,
) -> Parallel:
    if parallel == "swarm":
        from shoal.sdk.parallel.swarm import make_peer

        return make_peer(device, context.world_size, swarm)
    plan = read_plan(parallel, mesh, context.world_size)
    if plan.is_plain:
        from shoal.sdk.parallel.none import NoParallel

        return NoParallel(device)
    from shoal.sdk.ranks.group import ensure_group

    ensure_group(context, device)
    if plan.stages > 1:
        from shoal.sdk.parallel.pipeline import PipelineParallel

        return PipelineParallel(device, plan, context.rank)
    if plan.shards > 1 or plan.together > 1:
        from shoal.sdk.parallel.fsdp import ShardedParallel

        return ShardedParallel(device, plan, context.rank, tp_plan)
    from shoal.sdk.parallel.ddp import DataParallel

    return DataParallel(device, context.rank, context.world_size, ddp or {})
