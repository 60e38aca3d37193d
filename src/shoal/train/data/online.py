"""Training data read as a stream, without counting or loading it first.

shoal.data.stream reads the formats it knows (jsonl, text, csv, parquet, arrow, tar; on disk, on a server, in object storage);
each rank then reads only its share. Other files are read by a function of the user: each rank reads all of them and decodes
its share.
"""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from shoal.core.errors import UsageError
from shoal.sdk.samples.order import epoch_order
from shoal.sdk.saving.rng import derived_seed, seed_cpu
from shoal.train.data.base import (
    STATE_VERSION,
    Settings,
    at_least_one,
    check_state,
    global_batch,
    make_loader,
    share,
    undrawn,
)
from shoal.train.data.files import Paths, Read, expand, read_samples
from shoal.train.data.streamed import Streamed

torch: Any = import_module("torch")

SHUFFLE_BUFFER = 4096
"""Default number of samples that are shuffled in memory."""
_OURS = (".pkl", ".pickle", ".pt", ".pth")
"""Suffixes of files that shoal.data.stream does not decode."""

Piece = tuple[int, int, Any]
"""Batch with its epoch and the position in it: (epoch, samples done, batch)."""


class Online:
    """Batches of a stream.

    Args:
        source: Name of a dataset, a path, a URL (see shoal.data.stream), or files for `read`.
        batch_size: Samples per batch and rank.
        decode: Called on each sample, in the worker that read it.
        read: Yields the samples of a file, given its path. Needed for unknown kinds of files.
        shuffle_buffer: Samples that are shuffled in memory, in addition to the order of files.
        **options: Fields of shoal.train.data.base.Settings.

    Example:
        >>> for epoch, batch in Online("s3://bucket/train/*.jsonl", 32, epochs=1):
        ...     train(batch)
    """

    same_length = True
    """True, because every rank gets the same number of batches."""

    def __init__(
        self,
        source: Paths,
        batch_size: int,
        *,
        decode: Callable[[Any], Any] | None = None,
        read: Read | None = None,
        shuffle_buffer: int = SHUFFLE_BUFFER,
        **options: Any,
    ):
        self._settings = Settings.of(options)
        self._batch_size = at_least_one("batch_size", batch_size)
        self._buffer = at_least_one("shuffle_buffer", shuffle_buffer)
        files = _files_to_read(source, read)
        if files is None:
            self._engine: Streamed | _Read = self._streamed(source, decode)
        else:
            self._engine = _Read(files, self, decode, read or read_samples)

    def _streamed(self, source: Any, decode: Callable[[Any], Any] | None) -> Streamed:
        from shoal.data.streams import stream

        settings = self._settings
        rank, world = settings.place
        opened = stream(
            source,
            shuffle=settings.shuffle,
            seed=settings.seed,
            rank=rank,
            world_size=world,
            decode=decode,
            shuffle_buffer=self._buffer,
        )
        return Streamed(opened, self._batch_size, settings)

    @property
    def samples(self) -> None:
        """None: the number of samples in an epoch is unknown before its end."""
        return None

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """Iterate from the current position. A yielded batch counts as done."""
        return iter(self._engine)

    def state_dict(self) -> dict[str, Any]:
        """Return the position. It is valid for every rank if all have had the same number of batches."""
        return {"version": STATE_VERSION, "kind": type(self).__name__, **self._engine.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved position."""
        check_state(state, type(self).__name__)
        self._engine.load(state)


class _Read:
    """Batches of files that a function of the user reads."""

    def __init__(self, files: list[Path], owner: Online, decode: Callable[[Any], Any] | None, read: Read):
        self._settings, self._batch_size, self._buffer = owner._settings, owner._batch_size, owner._buffer
        self._files, self._decode, self._read = files, decode, read
        self._epoch = self._done = 0

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        loader = make_loader(_Pieces(self), self._settings, batch_size=None, collate_fn=_as_it_is)
        for epoch, done, batch in loader if self._settings.workers else undrawn(loader):
            self._epoch, self._done = epoch, done
            yield epoch, batch

    def state(self) -> dict[str, Any]:
        return {
            "files": [path.name for path in self._files],
            "seed": self._settings.seed,
            "shuffle": self._settings.shuffle,
            "epoch": self._epoch,
            "done": self._done,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        if state.get("files") != [path.name for path in self._files]:
            raise UsageError(
                f"this was saved with other files: {state.get('files')}",
                hint="resume with the same files, or start from scratch",
            )
        self._settings.seed, self._settings.shuffle = int(state["seed"]), bool(state["shuffle"])
        self._epoch, self._done = int(state["epoch"]), int(state["done"])

    def pieces(self, worker: int, workers: int) -> Iterator[Piece]:
        """Yield every n-th batch of this rank from the current position. Each of the n workers reads all samples."""
        epoch, done, turn = self._epoch, self._done, 0
        rank, world = self._settings.place
        while epoch < self._settings.last_epoch:
            rest = itertools.islice(self._mixed(epoch), done, None)
            for samples in _global_batches(rest, self._batch_size, world):
                if not done and len(samples) < world:
                    raise UsageError(
                        f"there are {len(samples)} samples for {world} workers", hint="train with fewer workers"
                    )
                if turn % workers == worker:
                    low, high = share(len(samples), rank, world)
                    mine = [self._decoded(samples[i], epoch, done + i) for i in range(low, high)]
                    yield epoch, done + len(samples), self._collated(mine)
                done, turn = done + len(samples), turn + 1
            if not done:
                raise UsageError("there are no samples in the files", hint=f"check the content of {self._files[0]}")
            epoch, done = epoch + 1, 0

    def _mixed(self, epoch: int) -> Iterator[Any]:
        """Yield all samples of an epoch, with files and the samples of each buffer in the epoch's order."""
        seed, shuffle = self._settings.seed, self._settings.shuffle
        order = epoch_order(len(self._files), seed, epoch, shuffle=shuffle)
        samples = itertools.chain.from_iterable(self._read(self._files[number]) for number in order)
        if not shuffle:
            yield from samples
            return
        for number in itertools.count():
            held = list(itertools.islice(samples, self._buffer))
            if not held:
                return
            for at in epoch_order(len(held), derived_seed(seed, "buffer", number), epoch):
                yield held[at]

    def _decoded(self, raw: Any, epoch: int, position: int) -> Any:
        if self._decode is None:
            return raw
        seed_cpu(derived_seed(self._settings.seed, epoch, position))
        return self._decode(raw)

    def _collated(self, samples: list[Any]) -> Any:
        return (self._settings.collate or torch.utils.data.default_collate)(samples)


class _Pieces(torch.utils.data.IterableDataset):  # type: ignore[misc]
    def __init__(self, engine: _Read):
        self._engine = engine

    def __iter__(self) -> Iterator[Piece]:
        info = torch.utils.data.get_worker_info()
        return self._engine.pieces(info.id, info.num_workers) if info is not None else self._engine.pieces(0, 1)


def _global_batches(samples: Iterator[Any], batch_size: int, world: int) -> Iterator[list[Any]]:
    """Yield global batches; reads far enough ahead to distribute the end of the epoch evenly."""
    ahead: list[Any] = []
    while True:
        ahead += itertools.islice(samples, batch_size * world + world - len(ahead))
        if not ahead:
            return
        count = global_batch(len(ahead), batch_size, world)
        yield ahead[:count]
        del ahead[:count]


def _files_to_read(source: Any, read: Read | None) -> list[Path] | None:
    """Return the files if this module reads them; None if shoal.data.stream does."""
    if read is not None or not isinstance(source, str | os.PathLike):
        return expand(source)
    if "://" in str(source) or not (Path(source).exists() or glob.has_magic(str(source))):
        return None
    found = expand(source)
    return found if all(path.suffix.lower() in _OURS for path in found) else None


def _as_it_is(piece: Any) -> Any:
    return piece
