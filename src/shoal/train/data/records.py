"""Training data larger than memory: files of records, mapped and not loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.train.data.base import Indexed, Items, Settings
from shoal.train.data.files import Paths
from shoal.train.data.record_files import RecordReader


class Records(Indexed):
    """Batches of records.

    source      files made by shoal.train.data.RecordWriter: a path, a folder, a pattern, or a list of them; or a RecordReader
    batch_size  samples per batch and rank
    decode      makes a sample of the bytes of a record, in the worker (json.loads, pickle.loads, …)

    More keywords: shoal.train.data.base.Settings.
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
