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
    """Batches of samples that lie in memory.

    source      a list of samples, a map-style dataset, anything that iterates over samples once, or files: a path, a folder, a
                pattern, or a list of them (so texts that are samples are given as iter(texts))
    batch_size  samples per batch and rank
    decode      called on each sample as it is fetched, in the worker; random augmentations belong here
    read        gives the samples of a file; by its name's ending unless given, see shoal.train.data.read_samples

    More keywords: shoal.train.data.base.Settings.
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
    """What can be asked for a sample by number."""
    if are_paths(source):
        return [sample for path in expand(source) for sample in (read or read_samples)(path)]
    if isinstance(source, Sized) and hasattr(source, "__getitem__"):
        return source if not isinstance(source, tuple) else list(source)
    return list(source)


def may_draw(samples: Any, decode: Callable[[Any], Any] | None) -> bool:
    """Whether fetching a sample may use random numbers; lists, tensors and records only give what they hold."""
    plain = (list, torch.Tensor, torch.utils.data.TensorDataset, RecordReader)
    return decode is not None or not isinstance(samples, plain)
