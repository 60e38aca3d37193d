"""Evaluation over all workers, each sample once. Results go through the store, not a collective, so slow workers are fine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

from shoal.core.errors import UsageError
from shoal.sdk.samples.order import cut
from shoal.train.batch import to_device
from shoal.train.gradients import sample_count

torch: Any = import_module("torch")
data: Any = torch.utils.data


def share_of(given: Any, batch_size: int, *, rank: int, world: int, same_count: bool) -> Iterator[tuple[Any, int]]:
    """Yield this worker's batches, each with the number of its samples that count.

    With `same_count` all workers get the same number of batches, as a sharded model needs; repeated ones count 0 samples.
    """
    loader = given if isinstance(given, data.DataLoader) else data.DataLoader(given, batch_size=batch_size)
    if isinstance(loader.dataset, data.IterableDataset):
        if rank == 0 or same_count:
            yield from ((batch, sample_count(batch) if rank == 0 else 0) for batch in loader)
        return
    size = len(loader.dataset)
    each = loader.batch_size or batch_size
    first, end = cut(size, world, rank)
    chunks = [list(range(at, min(at + each, end))) for at in range(first, end, each)]
    counts = [len(chunk) for chunk in chunks]
    if same_count and size:
        most = math.ceil(math.ceil(size / world) / each)
        counts += [0] * (most - len(chunks))
        chunks += [[0]] * (most - len(chunks))
    mine = data.DataLoader(
        loader.dataset, batch_sampler=chunks, collate_fn=loader.collate_fn, num_workers=loader.num_workers
    )
    yield from zip(mine, counts, strict=True)


def totals(
    share: Iterator[tuple[Any, int]], evaluate_batch: Callable[[Any], Any], device: Any
) -> dict[str, list[float]]:
    """Evaluate a share; return name → [sum over samples, number of samples]."""
    found: dict[str, list[float]] = {}
    for batch, samples in share:
        for name, value in named(evaluate_batch(to_device(batch, device))).items():
            entry = found.setdefault(name, [0.0, 0.0])
            if samples:
                entry[0] += value * samples
                entry[1] += samples
    return found


def means(of_all: list[Mapping[str, list[float]]]) -> dict[str, float]:
    """Return the mean of each value over the totals of all workers."""
    names = list(dict.fromkeys(name for one in of_all for name in one))
    found = {}
    for name in names:
        parts = [one[name] for one in of_all if name in one]
        count = sum(samples for _, samples in parts)
        found[name] = sum(total for total, _ in parts) / count if count else float("nan")
    return found


def named(values: Any) -> dict[str, float]:
    """Return evaluation values by name; a single number is named `error`."""
    if isinstance(values, Mapping):
        if not values:
            raise UsageError("the evaluation returned no value", hint='return a number, or {"error": …, "accuracy": …}')
        return {str(name): float(value) for name, value in values.items()}
    try:
        return {"error": float(values)}
    except (TypeError, ValueError):
        raise UsageError(
            f"the evaluation returned a {type(values).__name__}",
            hint='return a number (smaller is better), or several by name: {"error": …, "accuracy": …}',
        ) from None
