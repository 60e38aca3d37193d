"""Training data that fits into memory."""

from __future__ import annotations

from collections.abc import Callable, Sized
from importlib import import_module
from typing import Any

from shoal.train.data.base import Indexed, Items, Settings
from shoal.train.data.files import Read, are_paths, expand, read_samples
from shoal.train.data.record_files import RecordReader

torch: Any = import_module("torch")


class Small(Indexed):
    """Batches of samples in memory.

    Args:
        source: A list of samples, a map-style dataset, an iterator of samples, or files: a path, a folder, a pattern, or a
            list of them. A list of strings means files; pass texts that are samples as iter(texts).
        batch_size: Samples per batch and rank.
        decode: Called on each sample when it is fetched, in the worker. Random augmentation belongs here.
        read: Yields the samples of a file; by default according to its suffix, see shoal.train.data.read_samples.
        **options: Fields of shoal.train.data.base.Settings.

    Example:
        >>> for epoch, batch in Small("feat/train/*.pkl", 32, epochs=3):
        ...     train(batch)
    """

    def __init__(
        self,
        source: Any,
        batch_size: int,
        *,
        decode: Callable[[Any], Any] | None = None,
        read: Read | None = None,
        **options: Any,
    ):
        samples = in_memory(source, read)
        draws = may_draw(samples, decode)
        super().__init__(Items(samples, decode), batch_size, Settings.of(options), draws=draws)


def in_memory(source: Any, read: Read | None = None) -> Any:
    """Return the samples of a source as a sequence."""
    if are_paths(source):
        return [sample for path in expand(source) for sample in (read or read_samples)(path)]
    if isinstance(source, Sized) and hasattr(source, "__getitem__"):
        return source if not isinstance(source, tuple) else list(source)
    return list(source)


def may_draw(samples: Any, decode: Callable[[Any], Any] | None) -> bool:
    """Check whether fetching a sample may use random numbers. Plain lists, tensors and records do not."""
    plain = (list, torch.Tensor, torch.utils.data.TensorDataset, RecordReader)
    return decode is not None or not isinstance(samples, plain)
