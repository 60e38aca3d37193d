"""Random seed of the current run, for code that does not get its parameters."""

from __future__ import annotations

import contextlib
import random
import sys
from pathlib import Path

_of_run: int | None = None


def seed_generators(seed: int) -> None:
    """Seed Python's generator, and those of torch and numpy if they are imported. A seed of 0 means random: do nothing."""
    if not seed:
        return
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)


def begin(seed: int) -> None:
    """Set the seed of this run. It is the same on every worker and after a restore."""
    global _of_run
    _of_run = seed


def of_run() -> int:
    """Return the seed for shuffling data; outside of a run, a random one."""
    return random.getrandbits(31) if _of_run is None else _of_run


def kept_in(path_meta: str) -> int | None:
    """Return the seed stored by an earlier start of the run, or None."""
    with contextlib.suppress(OSError, ValueError):
        return int((Path(path_meta) / "seed").read_text())
    return None
