"""Training data larger than memory: files of records that are memory-mapped, not loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.train.data.base import Indexed, Items, Settings
from shoal.train.data.files import Paths
from shoal.train.data.record_files import RecordReader


class Records(Indexed):
    """Batches of records.

    Args:
        source: Files written by RecordWriter: a path, a folder, a pattern, or a list of them; or a RecordReader.
        batch_size: Samples per batch and rank.
        decode: Turns the bytes of a record into a sample, in the worker (json.loads, pickle.loads, …).
        **options: Fields of shoal.train.data.base.Settings.

    Example:
        >>> for epoch, batch in Records("feat/train/*.rec", 32, decode=json.loads, epochs=3):
        ...     train(batch)
    """

    def __init__(
        self,
        source: Paths | RecordReader,
        batch_size: int,
        *,
        decode: Callable[[bytes], Any] | None = None,
        **options: Any,
    ):
        reader = source if isinstance(source, RecordReader) else RecordReader(source)
        super().__init__(Items(reader, decode), batch_size, Settings.of(options), draws=decode is not None)
