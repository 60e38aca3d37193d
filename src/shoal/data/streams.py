"""`shoal.data.stream`: records of a dataset, read on demand, shuffled, divided among ranks and workers, resumable."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from shoal.core.errors import InvalidSpec, MissingExtra, Refused
from shoal.data.cache import cache_dir
from shoal.data.epochs import Epoch, Sample
from shoal.data.formats import choose
from shoal.data.index import Index
from shoal.data.order import BEGINNING, WIDTHS, Deal, Place
from shoal.data.positions import Cells, ListCells, SharedPlaces
from shoal.data.reader import Reader
from shoal.data.source import Source, open_source

if TYPE_CHECKING:
    from shoal.data.random_access import MapView
    from shoal.data.torch_loading import Loader

logger = logging.getLogger(__name__)

STATE_VERSION = 1
SHUFFLE_BUFFER = 4096
Tail = Literal["pad", "keep", "drop"]


def stream(
    name_or_url: str | os.PathLike[str],
    *,
    shuffle: bool = True,
    seed: int = 0,
    epoch: int = 0,
    rank: int | None = None,
    world_size: int | None = None,
    decode: Callable[[Any], Any] | None = None,
    shuffle_buffer: int = SHUFFLE_BUFFER,
    batch_size: int = 1,
    tail: Tail = "pad",
    format: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Stream:
    """Stream the records of a dataset.

    Args:
        name_or_url: NAME[@VERSION][/PATH] of a dataset, a path (absolute, or beginning with . or ~), or any URL that fsspec
            reads. Its end may be a pattern, such as *.jsonl.
        shuffle: Shuffle the records. False: the order of the files.
        seed: Seed of the order. The order depends on seed and epoch only, not on ranks or workers.
        epoch: Epoch of the first pass.
        rank: Rank of this process, given together with `world_size`. Default: from torch.distributed, else from RANK and
            WORLD_SIZE in the environment.
        world_size: Number of ranks that share the records.
        decode: Function that is called on every record, in the worker that read it.
        shuffle_buffer: Number of records that are held in memory and mixed, in addition to the shuffling of blocks.
        batch_size: Batch size of a DataLoader with workers; each worker reads whole batches. `loader()` sets it.
        tail: What happens if the number of samples is not divisible by the number of ranks: "pad" repeats some of the first
            samples so that all ranks get the same number, "keep" gives some ranks one more, "drop" omits the rest.
        format: jsonl, text, csv, parquet, arrow, tar or files. Default: from the file names.
        storage_options: Options of the fsspec filesystem, such as credentials.

    Returns:
        An iterable over the records; with torch installed also an IterableDataset.

    Example::

        records = shoal.data.stream("reviews@3/*.jsonl", seed=1)
        loader = records.loader(batch_size=32, num_workers=4)
        for epoch in range(3):
            loader.set_epoch(epoch)
            for batch in loader:
                ...
    """
    if tail not in ("pad", "keep", "drop"):
        raise InvalidSpec(f"tail must be 'pad', 'keep' or 'drop', not {tail!r}.")
    if shuffle_buffer < 1 or batch_size < 1:
        raise InvalidSpec("shuffle_buffer and batch_size must be at least 1.")
    _ranks(rank, world_size)
    source = open_source(name_or_url, storage_options or {})
    made = _stream_class()(
        source, format, shuffle=shuffle, seed=seed, rank=rank, world_size=world_size, shuffle_buffer=shuffle_buffer
    )
    made.decode, made.batch_size, made.tail = decode, batch_size, tail
    made.reopen = (os.fspath(name_or_url), dict(storage_options or {}))
    made.set_epoch(epoch)
    return made


class RawSample(NamedTuple):
    """A sample that is not decoded yet."""

    position: int
    """Position in the order of the epoch."""
    block: int
    raw: Any


class Stream:
    """Records of a dataset, made by `stream()`. One pass is one epoch; `set_epoch` gives the next pass another order."""

    decode: Callable[[Any], Any] | None = None
    batch_size = 1
    tail: Tail = "pad"
    reopen: tuple[str, dict[str, Any]] | None = None

    def __init__(
        self,
        source: Source,
        format: str | None = None,
        *,
        shuffle: bool = True,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        shuffle_buffer: int = SHUFFLE_BUFFER,
    ):
        self._given = (rank, world_size)
        self._format = format
        self._order: dict[str, Any] = {"shuffle": shuffle, "seed": seed, "shuffle_buffer": shuffle_buffer}
        self._places = SharedPlaces(self._cells())
        self._fresh = True
        self._position = 0
        self._is_done = False
        self._open(source)

    def __iter__(self) -> Iterator[Any]:
        workers = _worker()[1]
        if workers == 0:
            self.begin_pass()
        deal = self.deal()
        for position, block, raw in self._with_tail(deal):
            record = self.reader.decode(block, raw)
            record = record if self.decode is None else self.decode(record)
            if workers == 0:
                self._position = deal.round_end(position)
            yield record
        if workers == 0:
            self._is_done = True

    @property
    def epoch(self) -> int:
        """Epoch of the current or next pass."""
        return self._places.epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass.

        The epoch of a state that was just loaded continues at its position; any other epoch starts at its beginning.
        """
        if epoch != self._places.epoch or not self._fresh:
            self._restart(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this pass, valid for any rank and any number of ranks.

        Call it when all ranks have done the same number of steps.

        Example: `torch.save({"data": stream.state_dict()}, path)`
        """
        if _worker()[1]:
            raise Refused(
                "A DataLoader worker cannot save the position of the stream: it knows only its own share.",
                hint="Use stream.loader(...).state_dict().",
            )
        place = self._places.before(self._position)
        if self._is_done:
            place = Place(at=self._position, taken=len(self.reader.blocks))
        return {
            "version": STATE_VERSION,
            "source": self.source.pinned or self.source.label,
            "fingerprint": self.fingerprint,
            **self._order,
            "epoch": self._places.epoch,
            "position": self._position,
            "place": [place.at, place.turn, place.taken, *(list(cursor) for cursor in place.cursors)],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the next pass at a saved position. The state may come from another rank and another world size."""
        self._repin(str(state.get("source", "")))
        if state.get("fingerprint") != self.fingerprint:
            raise InvalidSpec(
                f"This state belongs to other files than those of {self.source.label}.",
                hint=f"It was saved with: {state.get('source')}",
            )
        for key, mine in ({"version": STATE_VERSION} | self._order).items():
            if state.get(key) != mine:
                raise InvalidSpec(f"This state was saved with {key}={state.get(key)!r}; the stream has {key}={mine!r}.")
        try:
            at, turn, taken, *cursors = state["place"]
            place = Place(int(at), int(turn), int(taken), tuple((int(block), int(start)) for block, start in cursors))
            self._restart(int(state["epoch"]), int(state["position"]), place)
        except (KeyError, ValueError, TypeError) as error:
            raise InvalidSpec("This is not a stream's state.") from error

    def as_map(self) -> MapView:
        """Return a map-style view of the records, in the order of the files. The first use counts all records.

        Example: `view = stream.as_map(); print(len(view), view[0])`
        """
        from shoal.data.random_access import make_view

        return make_view(self.reader, self.decode)

    def loader(self, *, batch_size: int = 1, num_workers: int = 0, **options: Any) -> Loader:
        """Return a torch DataLoader over the records, with `state_dict`, `load_state_dict` and `set_epoch`.

        The order of the samples does not depend on the number of workers.

        Args:
            batch_size: Samples per batch.
            num_workers: Processes that read data; 0 reads in this process.
            **options: Other arguments of torch.utils.data.DataLoader.

        Example: `loader = shoal.data.stream("reviews").loader(batch_size=32, num_workers=4)`
        """
        if importlib.util.find_spec("torch") is None:
            raise MissingExtra("A DataLoader needs torch.", hint="pip install 'shoal-train[train]'")
        from shoal.data.torch_loading import Loader

        return Loader(self, batch_size=batch_size, num_workers=num_workers, **options)

    def ranks(self) -> tuple[int, int]:
        """Return the current (rank, world size)."""
        return _ranks(*self._given)

    def begin_pass(self) -> None:
        """Begin a pass in this process: at a loaded state, once, else at the start of the epoch."""
        if not self._fresh:
            self._restart(self._places.epoch)
        self._fresh = False

    # used by loaders that cut batches themselves (shoal.train.data.Online)

    def deal(self) -> Deal:
        """Return the share of this process: that of its rank, or of one DataLoader worker of the rank."""
        worker, workers = _worker()
        rank, world_size = self.ranks()
        return Deal(rank, world_size, worker, max(1, workers), self.batch_size, self._places.start[0])

    def raw_samples(self, deal: Deal) -> Generator[RawSample, None, int]:
        """Yield the samples of one share from the start of this pass, without repeats. Return the epoch's length."""
        epoch, (low, place) = self._places.epoch, self._places.start
        samples = self._order_of(epoch).samples(deal, place, low, lambda passed: self._places.note(epoch, passed))
        while True:
            try:
                yield RawSample(*next(samples))
            except StopIteration as stop:
                return int(stop.value)

    def raw_sample_at(self, position: int) -> RawSample:
        """Return the sample at one position of this epoch, whichever rank it is dealt to."""
        only = Deal(position, position + 1)
        order = self._order_of(self._places.epoch)
        return RawSample(*next(order.samples(only, self._places.before(position), position, lambda _: None)))

    def decoded(self, sample: RawSample) -> Any:
        record = self.reader.decode(sample.block, sample.raw)
        return record if self.decode is None else self.decode(record)

    def reach(self, position: int) -> None:
        """Note that all ranks are done with everything before this position."""
        self._position = position

    def advance(self, samples: int) -> None:
        """Note that workers have delivered this many more samples of this rank."""
        self._position += samples * self.ranks()[1]

    def finish_pass(self) -> None:
        self._is_done = True

    def __getstate__(self) -> dict[str, Any]:
        # torch.distributed is not initialized in a spawned worker.
        return self.__dict__ | {"_given": self.ranks()}

    def _open(self, source: Source) -> None:
        kind, files = choose(source.files, self._format, source.label)
        try:
            blocks = kind.cut(source, files)
        except ValueError as error:
            raise InvalidSpec(f"{source.label}: {error}") from error
        text = json.dumps([type(kind).__name__, WIDTHS, [(f.path, f.size) for f in files]])
        self.fingerprint = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        stamps = json.dumps([self.fingerprint, [f.stamp for f in files]])
        kept = cache_dir() / "counts" / hashlib.blake2b(stamps.encode(), digest_size=16).hexdigest()
        self._places.forget()
        self.source = source
        self.reader = Reader(source, kind, blocks, Index(blocks, kept))

    def _restart(self, epoch: int, position: int = 0, place: Place = BEGINNING) -> None:
        self._places.begin(epoch, position, place)
        self._position = position
        self._fresh, self._is_done = True, False

    def _repin(self, reference: str) -> None:
        """Use the dataset version of a saved state if the stream was opened without a version."""
        mine = self.source.pinned
        if mine is None or self.reopen is None or reference == mine or "@" not in reference:
            return
        name, options = self.reopen
        opened = name.removeprefix("shoal://").partition("/")[0]
        if opened == reference.partition("@")[0]:
            logger.info(
                "Continuing with %s, the version of the saved state; the newest version is %s.", reference, mine
            )
            self._open(open_source(name.replace(opened, reference, 1), options))

    def _with_tail(self, deal: Deal) -> Iterator[Sample]:
        """Yield this reader's samples; pad or drop the last round if it has fewer samples than there are ranks."""
        epoch, (low, place) = self._places.epoch, self._places.start
        order = self._order_of(epoch)
        samples = order.samples(deal, place, low, lambda passed: self._places.note(epoch, passed))
        held: Sample | None = None
        while True:
            try:
                sample = next(samples)
            except StopIteration as stop:
                length = int(stop.value)
                break
            if self.tail != "drop":
                yield sample
                continue
            if held is not None:
                yield held
            held = sample
        if held is not None and deal.round_end(held[0]) <= length:
            yield held
        if self.tail == "pad" and low < length:
            for position in deal.positions(length, deal.round_end(length - 1)):
                first = order.samples(Deal((position - length) % length, length), BEGINNING, 0, lambda _: None)
                _, block, raw = next(first)
                yield position, block, raw

    def _order_of(self, epoch: int) -> Epoch:
        return Epoch(self.reader, epoch=epoch, **self._order)

    def _cells(self) -> Cells:
        return ListCells()


def _stream_class() -> type[Stream]:
    if importlib.util.find_spec("torch") is None:
        return Stream
    from shoal.data.torch_loading import TorchStream

    return TorchStream


def _worker() -> tuple[int, int]:
    """Return (number, count) of this DataLoader worker; (0, 0) outside a worker."""
    torch = sys.modules.get("torch")
    info = torch.utils.data.get_worker_info() if torch is not None else None
    return (info.id, info.num_workers) if info is not None else (0, 0)


def _ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if (rank is None) != (world_size is None):
        raise InvalidSpec("Pass both rank and world_size, or neither.")
    if rank is None or world_size is None:
        rank, world_size = _detected_ranks()
    if not 0 <= rank < world_size:
        raise InvalidSpec(f"Rank {rank} does not exist with a world size of {world_size}.")
    return rank, world_size


def _detected_ranks() -> tuple[int, int]:
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    try:
        return int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)
    except ValueError as error:
        raise InvalidSpec("RANK and WORLD_SIZE in the environment are not numbers.") from error
