"""Ways to make each block of a model cheaper: recomputed activations, regional compilation, and precision of the shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from shoal.core.errors import InvalidSpec, UsageError

if TYPE_CHECKING:
    from torch import nn

CHECKPOINTING = ("none", "selective", "full")
PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    precision: str = "fp32"
    """Type in which a sharded model computes; gradients are summed and weights kept in fp32."""
    activation_checkpointing: str = "none"
    """Activations of blocks that are computed again in the backward pass: none, all but the expensive ones, or all."""
    compile: bool = False
    """Compile each block by itself."""

    @property
    def is_default(self) -> bool:
        return self == Tuning()


def read_tuning(given: Mapping[str, Any]) -> Tuning:
    """Return the validated options. Raise InvalidSpec for those that are not supported."""
    tuning = Tuning(**given)
    if tuning.precision not in PRECISIONS:
        hint = (
            "FP8 is not supported yet." if "8" in str(tuning.precision) else "Other types: torch.autocast in the loop."
        )
        raise InvalidSpec(f"precision={tuning.precision!r} is not one of {', '.join(PRECISIONS)}.", hint=hint)
    if tuning.activation_checkpointing not in CHECKPOINTING:
        asked = tuning.activation_checkpointing
        raise InvalidSpec(f"activation_checkpointing={asked!r} is not one of {', '.join(CHECKPOINTING)}.")
    return tuning


def refuse(tuning: Tuning, way: str, *, only_precision: bool = False) -> None:
    """Raise InvalidSpec if this kind of parallelism would not do what was asked."""
    if tuning.precision != "fp32":
        raise InvalidSpec(
            f"precision={tuning.precision!r} has no effect with parallel={way!r} here: it needs a sharded model.",
            hint='Use parallel="fsdp" with several workers, or torch.autocast in the loop.',
        )
    if not only_precision and not tuning.is_default:
        raise InvalidSpec(f"activation_checkpointing= and compile= are not supported with parallel={way!r}.")


def tune_blocks(model: nn.Module, tuning: Tuning) -> None:
    """Apply recomputation and compilation to the repeated blocks. Names of weights stay. Raise UsageError without blocks."""
    if tuning.activation_checkpointing == "none" and not tuning.compile:
        return
    from torch.utils.checkpoint import checkpoint

    from shoal.sdk.parallel.blocks import block_lists

    blocks = [block for blocks in block_lists(model) for block in blocks]
    if not blocks:
        raise UsageError(
            f"{type(model).__name__} has no list of repeated blocks to apply activation_checkpointing= or compile= to.",
            hint="Put its blocks into an nn.ModuleList, or use torch.utils.checkpoint and torch.compile in the script.",
        )
    for block in blocks:
        # The forward alone is computed again, without the hooks of the block: those gather its shards.
        if tuning.activation_checkpointing == "full":
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        elif tuning.activation_checkpointing == "selective":
            block.forward = partial(checkpoint, block.forward, use_reentrant=False, context_fn=_keep_expensive)
        if tuning.compile:
            block.compile()


def _keep_expensive() -> Any:
    """Return the contexts of a block that keeps what matrix products and attention give, and computes the rest again."""
    import torch
    from torch.utils.checkpoint import CheckpointPolicy

    ops: Any = torch.ops.aten
    kept = {
        ops.mm.default,
        ops.addmm.default,
        ops.bmm.default,
        ops.baddbmm.default,
        ops._scaled_dot_product_flash_attention.default,
        ops._scaled_dot_product_efficient_attention.default,
        ops._scaled_dot_product_flash_attention_for_cpu.default,
    }

    def policy(_: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if op in kept else CheckpointPolicy.PREFER_RECOMPUTE

    module: Any = import_module("torch.utils.checkpoint")
    return module.create_selective_checkpoint_contexts(policy)
