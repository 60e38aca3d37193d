"""Training data that is distributed to the ranks, yields each sample once per epoch, and resumes where it stopped.

Small      samples in memory, from a list, a dataset or files
Records    memory-mapped files of records, larger than memory; RecordWriter writes them, RecordReader reads them by number
Variable   batches of samples of similar length; shorter samples make larger batches
Online     files read as a stream, from disk, a server or object storage
check_files  checks feature files before a run starts

All of them iterate over (epoch, batch) and have state_dict and load_state_dict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.core.lazy import lazy_names

if TYPE_CHECKING:
    from shoal.train.data.check import FileFacts, check_files
    from shoal.train.data.files import expand, read_samples
    from shoal.train.data.online import Online
    from shoal.train.data.record_files import RecordReader, RecordWriter, write_records
    from shoal.train.data.records import Records
    from shoal.train.data.small import Small
    from shoal.train.data.variable import Variable

__all__ = [
    "FileFacts",
    "Online",
    "RecordReader",
    "RecordWriter",
    "Records",
    "Small",
    "Variable",
    "check_files",
    "expand",
    "read_samples",
    "write_records",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "FileFacts": ".check",
        "Online": ".online",
        "RecordReader": ".record_files",
        "RecordWriter": ".record_files",
        "Records": ".records",
        "Small": ".small",
        "Variable": ".variable",
        "check_files": ".check",
        "expand": ".files",
        "read_samples": ".files",
        "write_records": ".record_files",
    },
)
