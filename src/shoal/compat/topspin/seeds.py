"""The random seed of the run at hand, for code that is not handed its parameters."""

from __future__ import annotations

import contextlib
import random
import sys
from pathlib import Path

_of_run: int | None = None


def seed_generators(seed: int) -> None:
    """Nothing for 0, which means random. Of torch and numpy only where they are in use already."""
    if not seed:
        return
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)


def begin(seed: int) -> None:
    """This run's: on every worker, and again when it is restored, the same."""
    global _of_run
    _of_run = seed


def of_run() -> int:
    """What data is shuffled by. Outside of a run it is drawn."""
    return random.getrandbits(31) if _of_run is None else _of_run


def kept_in(path_meta: str) -> int | None:
    """Of a run that was begun before."""
    with contextlib.suppress(OSError, ValueError):
        return int((Path(path_meta) / "seed").read_text())
    return None
