"""Options of `shoal.init(...)` and their validation. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.core.errors import UsageError

PARALLEL = ("auto", "ddp", "fsdp", "pipeline", "none", "swarm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Validated arguments of `shoal.init`."""

    name: str | None = None
    """Name of the run. Default: the name of the job, or of the script."""
    parallel: str = "auto"
    """One of PARALLEL. "auto" means ddp with more than one worker, else none."""
    mesh: Mapping[str, int] | None = None
    """Sizes of the axes ddp, fsdp, cp, tp and pipeline, such as {"ddp": 2, "fsdp": 2}. The product must be the world size."""
    tp_plan: Callable[[Any], Mapping[str, Any]] | None = None
    """Function that returns how the axis tp divides a model: patterns of module names with "column", "row" or "gather"."""
    precision: str = "fp32"
    """Type in which a model sharded by fsdp computes: "fp32" or "bf16". Weights and sums of gradients stay fp32."""
    activation_checkpointing: str = "none"
    """Activations of the model's blocks that are computed again in the backward pass: "none", "selective" or "full"."""
    compile: bool = False
    """Compile each of the model's repeated blocks."""
    seed: int | None = None
    """Seed of the sample order and of the random generators. None: order from seed 0, generators untouched."""
    deterministic: bool = False
    """Use deterministic algorithms only, so that two runs on the same hardware have the same bits. Slower."""
    max_steps: int | None = None
    """Global steps to train for, counted over all attempts."""
    accumulate: int = 1
    """Iterations per optimizer step, at the world size the training was started with."""
    checkpoint_every: int | None = None
    """Global steps between two checkpoints. None: by time only."""
    checkpoint_every_s: float | None = 600.0
    """Seconds between two checkpoints. None: by steps only."""
    keep_checkpoints: int = 2
    """Number of newest checkpoints kept in the output directory. The platform keeps its own copies."""
    whole_checkpoints: bool = False
    """Gather a sharded model on rank 0 and save it as one model.pt, which needs host memory for all of it."""
    resume: str | os.PathLike[str] = "auto"
    """Checkpoint to start from: "auto" (SHOAL_RESUME_FROM, else the newest complete one in the output directory), "never",
    or a path."""
    trackers: Sequence[Any] = ()
    """Other trackers that receive the metrics: "tensorboard", "wandb", "mlflow", or objects with the methods of trackers.Tracker."""
    config: Mapping[str, Any] | None = None
    """Hyperparameters to show with the run."""
    dir: str | os.PathLike[str] | None = None
    """Run directory outside the platform. Default: ./shoal-runs/<name>-<time>-<4 hex>."""
    device: str | None = None
    """Device to train on. Default: the accelerator of this worker, else the CPU."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Options for adapters that are built on this API."""

    def __post_init__(self) -> None:
        if self.parallel not in PARALLEL:
            raise UsageError(f"parallel={self.parallel!r} is not one of {', '.join(PARALLEL)}")
        for name in ("max_steps", "checkpoint_every", "accumulate", "keep_checkpoints"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise UsageError(f"{name}={value!r} must be a whole number of at least 1")
        if self.checkpoint_every_s is not None and not self.checkpoint_every_s > 0:
            raise UsageError(f"checkpoint_every_s={self.checkpoint_every_s!r} must be a positive number of seconds")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0):
            raise UsageError(f"seed={self.seed!r} must be a whole number, 0 or larger")
        if isinstance(self.trackers, str):
            raise UsageError(f'trackers={self.trackers!r} must be a list: trackers=["{self.trackers}"]')
