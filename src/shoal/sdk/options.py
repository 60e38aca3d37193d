"""What a script asks for in `shoal.init(...)`, in one checked place. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.core.errors import UsageError

PARALLEL = ("auto", "ddp", "fsdp", "pipeline", "none", "swarm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The arguments of `shoal.init`, checked."""

    name: str | None = None
    """Of the run; default: the job's name, or the script's."""
    parallel: str = "auto"
    """One of PARALLEL; "auto" is ddp with more than one worker, else none."""
    mesh: Mapping[str, int] | None = None
    """Two kinds at once: {"ddp": 2, "fsdp": 2}. The product is the world size."""
    seed: int | None = None
    """Of data order and of the random generators; None: order from seed 0, generators untouched."""
    max_steps: int | None = None
    """Global steps the training is meant to take, counted over all attempts."""
    accumulate: int = 1
    """Iterations per optimizer step at the world size the training was started with."""
    checkpoint_every: int | None = None
    """Global steps between checkpoints; None: only by time."""
    checkpoint_every_s: float | None = 600.0
    """Seconds between checkpoints; None: only by steps."""
    keep_checkpoints: int = 2
    """Newest checkpoints kept in the output directory; the platform keeps its own copies."""
    resume: str | os.PathLike[str] = "auto"
    """"auto": from SHOAL_RESUME_FROM or the newest complete one in the output directory; "never"; or a path."""
    trackers: Sequence[Any] = ()
    """Mirrors of the metrics: "tensorboard", "wandb", or objects with the methods of trackers.Tracker."""
    config: Mapping[str, Any] | None = None
    """Hyperparameters to show beside the run."""
    dir: str | os.PathLike[str] | None = None
    """Run directory when not on the platform; default ./shoal-runs/<name>-<time>-<4 hex>."""
    device: str | None = None
    """Overrides the device chosen from what the machine has."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Room for adapters built on the native API."""

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
