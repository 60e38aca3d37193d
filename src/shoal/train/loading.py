"""Number of data-loading processes: as few as the time that a dataset takes to load its samples asks for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

from shoal.sdk.signals import in_data_worker

torch: Any = import_module("torch")
data: Any = torch.utils.data
logger = logging.getLogger(__name__)

WORKERS = 2
"""Data-loading processes for data that takes time to load."""
WORTH_S = 0.002
"""Seconds to load a batch above which processes are worth their cost: receiving a batch from one takes about as long."""
_BATCHES = 4
_LIMIT_S = 1.0


def workers_for(dataset: Any, batch_size: int) -> int:
    """Return how many processes should load the batches of a map-style dataset. The batches are the same with any number."""
    if type(dataset) is data.TensorDataset:
        return 0
    try:
        seconds = seconds_to_load(dataset, batch_size)
    except Exception as error:  # the same error comes again in the training, where it is explained better
        logger.debug("shoal: the time to load a batch could not be measured: %s", error)
        return 0
    return WORKERS if seconds > WORTH_S else 0


def seconds_to_load(dataset: Any, batch_size: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds that a batch takes, measured in another process.

    A dataset may open files when it is first used. Opened here, before the loading processes are forked, they would be
    shared by all of them.
    """
    if not len(dataset):
        return 0.0
    generator = torch.Generator()  # so that the loader does not draw from the script's
    probe = _Probe(dataset, batch_size, clock)
    options = {"num_workers": 1, "batch_size": None, "worker_init_fn": partial(in_data_worker, None)}
    return float(next(iter(data.DataLoader(probe, generator=generator, **options))))


class _Probe(data.IterableDataset):  # type: ignore[misc]
    """Data whose only item is the least time that one of the first batches takes; the very first one is not counted."""

    def __init__(self, dataset: Any, batch_size: int, clock: Callable[[], float]):
        self._dataset, self._size, self._clock = dataset, batch_size, clock

    def __iter__(self) -> Iterator[float]:
        began, taken = self._clock(), []
        for number in range(_BATCHES + 1):
            start = self._clock()
            self._load([(number * self._size + i) % len(self._dataset) for i in range(self._size)])
            taken.append(self._clock() - start)
            if self._clock() - began > _LIMIT_S:
                break
        yield min(taken[1:] or taken)

    def _load(self, indices: list[int]) -> Any:
        many = getattr(self._dataset, "__getitems__", None)
        return data.default_collate(many(indices) if callable(many) else [self._dataset[i] for i in indices])
