"""`shoal.data.stream`: records of a dataset, read on demand, shuffled, dealt to ranks and workers, resumable."""

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
from shoal.data.books import Book, Cells, ListCells
from shoal.data.cache import cache_dir
from shoal.data.epochs import Epoch, Sample
from shoal.data.formats import choose
from shoal.data.index import Index
from shoal.data.order import BEGINNING, WIDTHS, Deal, Place
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
    """Records of a dataset, an iterable for a training loop and (with torch) an IterableDataset for a DataLoader.

    name_or_url     a dataset's NAME[@VERSION][/PATH], a path, or any URL fsspec reads; the end may be a pattern (*.jsonl)
    shuffle, seed   the order depends on seed and epoch only, and not on ranks or workers; unshuffled, it is that of the files
    rank            this process's share; with world_size from RANK and WORLD_SIZE, or torch.distributed, unless given
    decode          called on every record, in the worker that read it
    shuffle_buffer  records held in memory and mixed, beside the mixing of whole blocks
    batch_size      of a DataLoader with workers, which then deal whole batches; `loader()` sets it
    tail            if the samples do not divide by the ranks: "pad" repeats some of the first so that all ranks get as many,
                    "keep" lets some ranks get one more, "drop" leaves the rest out
    format          jsonl, text, csv, parquet, arrow, tar or files, where file names do not tell
    """
    if tail not in ("pad", "keep", "drop"):
        raise InvalidSpec(f"tail is 'pad', 'keep' or 'drop', not {tail!r}.")
    if shuffle_buffer < 1 or batch_size < 1:
        raise InvalidSpec("shuffle_buffer and batch_size are at least 1.")
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
    """A sample as it was read."""

    position: int
    """In the order of the epoch."""
    block: int
    raw: Any


class Stream:
    """Made by `stream()`. One pass is one epoch; `set_epoch` gives the next another order."""

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
        self._book = Book(self._cells())
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
        return self._book.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass. The epoch of a state just loaded goes on where it was; another starts anew."""
        if epoch != self._book.epoch or not self._fresh:
            self._restart(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where this pass is, for any rank and any number of them: take it when all ranks have done as many steps."""
        if _worker()[1]:
            raise Refused("A DataLoader worker knows only its own share.", hint="Use stream.loader(...).state_dict().")
        place = self._book.before(self._position)
        if self._is_done:
            place = Place(at=self._position, taken=len(self.reader.blocks))
        return {
            "version": STATE_VERSION,
            "source": self.source.pinned or self.source.label,
            "fingerprint": self.fingerprint,
            **self._order,
            "epoch": self._book.epoch,
            "position": self._position,
            "place": [place.at, place.turn, place.taken, *(list(lane) for lane in place.lanes)],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Have the next pass continue there. The state may come from another rank, and from another number of them."""
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
            at, turn, taken, *lanes = state["place"]
            place = Place(int(at), int(turn), int(taken), tuple((int(block), int(start)) for block, start in lanes))
            self._restart(int(state["epoch"]), int(state["position"]), place)
        except (KeyError, ValueError, TypeError) as error:
            raise InvalidSpec("This is not a stream's state.") from error

    def as_map(self) -> MapView:
        """The same records by number, in the order of the files: `len(view)`, `view[i]`. Counts them first, once."""
        from shoal.data.random_access import make_view

        return make_view(self.reader, self.decode)

    def loader(self, *, batch_size: int = 1, num_workers: int = 0, **options: Any) -> Loader:
        """A torch DataLoader whose order does not depend on its workers, and which has `state_dict` and `set_epoch` too."""
        if importlib.util.find_spec("torch") is None:
            raise MissingExtra("A DataLoader needs torch.", hint="pip install 'shoal[train]'")
        from shoal.data.torch_loading import Loader

        return Loader(self, batch_size=batch_size, num_workers=num_workers, **options)

    def ranks(self) -> tuple[int, int]:
        """(rank, world size) as of now."""
        return _ranks(*self._given)

    def begin_pass(self) -> None:
        """A pass begins in this process: where a loaded state says, once, and else at the epoch's start."""
        if not self._fresh:
            self._restart(self._book.epoch)
        self._fresh = False

    # for loaders that cut batches themselves: shoal.train.data.Online

    def deal(self) -> Deal:
        """Return the share of this process: that of its rank, or of one DataLoader worker of the rank."""
        worker, workers = _worker()
        rank, world_size = self.ranks()
        return Deal(rank, world_size, worker, max(1, workers), self.batch_size, self._book.start[0])

    def raw_samples(self, deal: Deal) -> Generator[RawSample, None, int]:
        """Yield the samples of one share from where this pass begins; nothing is repeated. Return the epoch's length."""
        epoch, (low, place) = self._book.epoch, self._book.start
        samples = self._order_of(epoch).samples(deal, place, low, lambda passed: self._book.note(epoch, passed))
        while True:
            try:
                yield RawSample(*next(samples))
            except StopIteration as stop:
                return int(stop.value)

    def raw_sample_at(self, position: int) -> RawSample:
        """Return the sample at one position of this epoch, whichever rank it is dealt to."""
        only = Deal(position, position + 1)
        order = self._order_of(self._book.epoch)
        return RawSample(*next(order.samples(only, self._book.before(position), position, lambda _: None)))

    def decoded(self, sample: RawSample) -> Any:
        record = self.reader.decode(sample.block, sample.raw)
        return record if self.decode is None else self.decode(record)

    def reach(self, position: int) -> None:
        """Note that all ranks are done with everything before this position."""
        self._position = position

    def advance(self, samples: int) -> None:
        """Workers have handed over as many more samples of this rank."""
        self._position += samples * self.ranks()[1]

    def finish_pass(self) -> None:
        self._is_done = True

    def __getstate__(self) -> dict[str, Any]:
        # A worker that is spawned does not know torch.distributed.
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
        self._book.forget()
        self.source = source
        self.reader = Reader(source, kind, blocks, Index(blocks, kept))

    def _restart(self, epoch: int, position: int = 0, place: Place = BEGINNING) -> None:
        self._book.begin(epoch, position, place)
        self._position = position
        self._fresh, self._is_done = True, False

    def _repin(self, reference: str) -> None:
        """Stay with the version a state was saved at, if the stream was opened without one."""
        mine = self.source.pinned
        if mine is None or self.reopen is None or reference == mine or "@" not in reference:
            return
        name, options = self.reopen
        opened = name.removeprefix("shoal://").partition("/")[0]
        if opened == reference.partition("@")[0]:
            logger.info("Continuing with %s, although %s is the newest version.", reference, mine)
            self._open(open_source(name.replace(opened, reference, 1), options))

    def _with_tail(self, deal: Deal) -> Iterator[Sample]:
        """This reader's samples, and what is to be done where the last round has fewer samples than there are ranks."""
        epoch, (low, place) = self._book.epoch, self._book.start
        order = self._order_of(epoch)
        samples = order.samples(deal, place, low, lambda passed: self._book.note(epoch, passed))
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
    """(number, count) of this DataLoader worker; (0, 0) outside of one."""
    torch = sys.modules.get("torch")
    info = torch.utils.data.get_worker_info() if torch is not None else None
    return (info.id, info.num_workers) if info is not None else (0, 0)


def _ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if (rank is None) != (world_size is None):
        raise InvalidSpec("Give both rank and world_size, or neither.")
    if rank is None or world_size is None:
        rank, world_size = _surroundings()
    if not 0 <= rank < world_size:
        raise InvalidSpec(f"Rank {rank} is not among {world_size} ranks.")
    return rank, world_size


def _surroundings() -> tuple[int, int]:
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    try:
        return int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)
    except ValueError as error:
        raise InvalidSpec("RANK and WORLD_SIZE in the environment are not numbers.") from error
