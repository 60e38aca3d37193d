"""What all training data has in common: whose turn it is, where it stands, and how it goes on there.

The position is global: so many samples of an epoch are done, by all ranks together. It does not say by how many of them, so a
training goes on at another world size with the very samples that were next.
"""

from __future__ import annotations

import difflib
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from shoal.core.errors import UsageError
from shoal.sdk.loader import PlainDataset, SeededDataset
from shoal.sdk.order import cut, epoch_order
from shoal.sdk.saving.rng import derived_seed, keep_cpu
from shoal.sdk.signals import in_data_worker

torch: Any = import_module("torch")

STATE_VERSION = 1


@dataclass(slots=True, kw_only=True)
class Settings:
    """Keywords that every kind of training data takes."""

    epochs: float | None = None
    """How often all samples come; None: without end. Part of an epoch counts as one: the trainer stops inside."""
    seed: int = 0
    """None counts as 0: ranks have to agree."""
    shuffle: bool = True
    """In an order that depends on seed and epoch alone, not on ranks, workers or restarts."""
    rank: int | None = None
    """This process's; with `world` from torch.distributed, or RANK and WORLD_SIZE, unless given."""
    world: int | None = None
    """How many processes share the data."""
    collate: Callable[[list[Any]], Any] | None = None
    """Makes a batch of a list of samples; torch's own way unless given."""
    workers: int = 0
    """Processes that load data, for each rank."""
    loader: dict[str, Any] = field(default_factory=dict)
    """More for torch's DataLoader, such as {"pin_memory": True}."""

    @classmethod
    def of(cls, options: dict[str, Any]) -> Settings:
        names = [f.name for f in fields(cls)]
        for name in options:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
                raise UsageError(f"training data has no setting {name}", hint=hint)
        made = cls(**{**options, "seed": options.get("seed") or 0})
        made.rank, made.world = ranks(made.rank, made.world)
        if made.epochs is not None and made.epochs <= 0:
            raise UsageError(f"epochs is {made.epochs}, and should be above 0, or None for no end")
        if made.workers < 0:
            raise UsageError(f"workers is {made.workers}, and should be 0 or more")
        return made

    @property
    def last_epoch(self) -> float:
        """The first epoch that does not come any more."""
        return math.inf if self.epochs is None else math.ceil(self.epochs)

    @property
    def place(self) -> tuple[int, int]:
        """(rank, world)"""
        return self.rank or 0, self.world or 1


class Turn(NamedTuple):
    """One batch of this rank, and how far the epoch is done after it."""

    epoch: int
    indices: list[int]
    done: Any


class Batches:
    """Iterates over (epoch, batch) on this rank. Subclasses say in which turns an epoch of `items` comes."""

    same_length = True
    """Every rank gets as many batches."""

    def __init__(self, items: Any, settings: Settings, *, draws: bool):
        """`draws`: fetching a sample may use random numbers."""
        self._items, self._settings, self._draws = items, settings, draws
        self._epoch = 0
        self._done: Any = self._none_done()
        if not self.samples:
            raise UsageError("there are no samples", hint="look at what the data files hold")
        if self.samples < settings.place[1]:
            raise UsageError(
                f"there are {self.samples} samples for {settings.place[1]} workers", hint="train with fewer workers"
            )

    @property
    def samples(self) -> int:
        """In one epoch."""
        return len(self._items)

    @property
    def epoch(self) -> int:
        """Of the batch handed over last."""
        return self._epoch

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """From where it stands. What is handed over counts as done: a state saved then goes on with the next batch."""
        coming: deque[Turn] = deque()
        own = SeededDataset(self._items, self._settings.seed) if self._draws else PlainDataset(self._items)
        loader = make_loader(own, self._settings, batch_sampler=_Keys(self, coming), collate_fn=self._settings.collate)
        for batch in undrawn(loader) if self._draws and not self._settings.workers else loader:
            turn = coming.popleft()
            self._epoch, self._done = turn.epoch, turn.done
            yield turn.epoch, batch

    def state_dict(self) -> dict[str, Any]:
        """The same on every rank, when all have had as many batches."""
        return {
            "version": STATE_VERSION,
            "kind": type(self).__name__,
            "samples": self.samples,
            "seed": self._settings.seed,
            "shuffle": self._settings.shuffle,
            "epoch": self._epoch,
            "done": self._done,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on there: with its seed, on whichever rank of however many."""
        check_state(state, type(self).__name__)
        if state["samples"] != self.samples:
            raise UsageError(
                f"the data has changed: there were {state['samples']} samples when this was saved, now there are {self.samples}",
                hint="go on with the same files, or start anew",
            )
        self._settings.seed, self._settings.shuffle = int(state["seed"]), bool(state["shuffle"])
        self._epoch, self._done = int(state["epoch"]), state["done"]

    def turns(self, epoch: int, done: Any) -> Iterator[Turn]:
        """What is left of an epoch of which so much is done, on this rank."""
        raise NotImplementedError(f"{type(self).__name__} needs a turns(epoch, done)")

    def _none_done(self) -> Any:
        return 0

    def _all_turns(self) -> Iterator[Turn]:
        epoch, done = self._epoch, self._done
        while epoch < self._settings.last_epoch:
            yield from self.turns(epoch, done)
            epoch, done = epoch + 1, self._none_done()


class Indexed(Batches):
    """Batches of one size, cut from the order of the epoch."""

    def __init__(self, items: Any, batch_size: int, settings: Settings, *, draws: bool):
        self._batch_size = at_least_one("batch_size", batch_size)
        super().__init__(items, settings, draws=draws)

    @property
    def batches(self) -> int:
        """In one epoch, on every rank."""
        world = self._settings.place[1]
        count = max(0, self.samples // (self._batch_size * world) - 2)
        left = self.samples - count * self._batch_size * world
        while left:
            left -= global_batch(left, self._batch_size, world)
            count += 1
        return count

    def turns(self, epoch: int, done: Any) -> Iterator[Turn]:
        rank, world = self._settings.place
        order = epoch_order(self.samples, self._settings.seed, epoch, shuffle=self._settings.shuffle)
        while done < self.samples:
            count = global_batch(self.samples - done, self._batch_size, world)
            low, high = share(count, rank, world)
            mine = order.part(done + low, done + high)
            done += count
            yield Turn(epoch, mine, done)


class Items:
    """Samples by number, decoded as they are fetched."""

    def __init__(self, source: Any, decode: Callable[[Any], Any] | None):
        self._source, self._decode = source, decode

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Any:
        found = self._source[index]
        return found if self._decode is None else self._decode(found)


def make_loader(dataset: Any, settings: Settings, **options: Any) -> Any:
    """torch's DataLoader, which never draws from the script's generators."""
    generator = torch.Generator().manual_seed(derived_seed(settings.seed, "loader"))
    return torch.utils.data.DataLoader(dataset, generator=generator, **options, **loader_options(settings))


def loader_options(settings: Settings) -> dict[str, Any]:
    options = {"num_workers": settings.workers, **settings.loader}
    if settings.workers:
        options["worker_init_fn"] = partial(in_data_worker, options.get("worker_init_fn"))
    return options


def undrawn(batches: Iterable[Any]) -> Iterator[Any]:
    """The same batches, with the generators of this process put back after each: fetching seeds them by the sample's number."""
    fetched = iter(batches)
    while True:
        put_back = keep_cpu()
        try:
            batch = next(fetched)
        except StopIteration:
            return
        finally:
            put_back()
        yield batch


def global_batch(left: int, batch_size: int, world: int) -> int:
    """How many of the samples that are left make the next batch of all ranks.

    Never so many that less than one per rank remains: the batch before the last gives some up, and where it has none to give
    (batches of one) the last takes two.
    """
    most = batch_size * world
    rest = left - most
    if rest <= 0:
        return left
    if rest >= world:
        return most
    return left - world if left >= 2 * world else left


def share(count: int, rank: int, world: int) -> tuple[int, int]:
    """One rank's part of a global batch. With fewer samples than ranks some come twice, so that no rank waits for ever."""
    low, high = cut(count, world, rank)
    return (low, high) if low < high else (rank % count, rank % count + 1)


def at_least_one(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{name} is {value!r}, and should be a whole number above 0")
    return value


def ranks(rank: int | None, world: int | None) -> tuple[int, int]:
    """This process's place, from what is given or where it runs."""
    if (rank is None) != (world is None):
        raise UsageError("give both rank and world, or neither")
    if rank is None or world is None:
        rank, world = _surroundings()
    if not 0 <= rank < world:
        raise UsageError(f"rank {rank} is not one of {world}", hint="ranks count from 0")
    return rank, world


def check_state(state: Mapping[str, Any], kind: str) -> None:
    if state.get("version") != STATE_VERSION or state.get("kind") != kind:
        raise UsageError(
            f"this is not the state of {kind}: it says {state.get('kind')}, version {state.get('version')}"
        )


def _surroundings() -> tuple[int, int]:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)


class _Keys:
    """What torch's DataLoader asks for: one pass over all epochs, so that its workers are started once."""

    def __init__(self, batches: Batches, coming: deque[Turn]):
        self._batches, self._coming = batches, coming

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for turn in self._batches._all_turns():
            self._coming.append(turn)
            yield [(turn.epoch, index) for index in turn.indices]
