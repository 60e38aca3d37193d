"""Base of all training data: which samples a rank gets, the position in the epoch, and resuming from it.

The position is global: the number of samples of an epoch that all ranks together have done. It is independent of the number
of ranks, so a training can resume with another world size at exactly the next samples.
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
from shoal.sdk.samples.loader import PlainDataset, SeededDataset
from shoal.sdk.samples.order import cut, epoch_order
from shoal.sdk.saving.rng import derived_seed, keep_cpu
from shoal.sdk.signals import in_data_worker

torch: Any = import_module("torch")

STATE_VERSION = 1


@dataclass(slots=True, kw_only=True)
class Settings:
    """Keyword arguments that every kind of training data accepts."""

    epochs: float | None = None
    """Number of epochs, rounded up (the trainer stops inside the last); None: endless."""
    seed: int = 0
    """Random seed of the sample order. None counts as 0, because ranks must agree."""
    shuffle: bool = True
    """Shuffle the samples. The order depends on seed and epoch only, not on ranks, workers or restarts."""
    rank: int | None = None
    """Rank of this process; by default, with `world`, from torch.distributed, or RANK and WORLD_SIZE."""
    world: int | None = None
    """Number of processes that share the data."""
    collate: Callable[[list[Any]], Any] | None = None
    """Function that makes a batch from a list of samples; by default torch's."""
    workers: int = 0
    """Data-loading processes per rank."""
    loader: dict[str, Any] = field(default_factory=dict)
    """Additional arguments of torch's DataLoader, such as {"pin_memory": True}."""

    @classmethod
    def of(cls, options: dict[str, Any]) -> Settings:
        """Return settings from keyword arguments; raise UsageError for unknown names and invalid values."""
        names = [f.name for f in fields(cls)]
        for name in options:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
                raise UsageError(f"training data has no setting {name}", hint=hint)
        made = cls(**{**options, "seed": options.get("seed") or 0})
        made.rank, made.world = ranks(made.rank, made.world)
        if made.epochs is not None and made.epochs <= 0:
            raise UsageError(f"epochs is {made.epochs}, and should be above 0, or None for endless data")
        if made.workers < 0:
            raise UsageError(f"workers is {made.workers}, and should be 0 or more")
        return made

    @property
    def last_epoch(self) -> float:
        """Number of the first epoch after the last one."""
        return math.inf if self.epochs is None else math.ceil(self.epochs)

    @property
    def place(self) -> tuple[int, int]:
        """Rank and world size."""
        return self.rank or 0, self.world or 1


class Turn(NamedTuple):
    """One batch of this rank, and the position in the epoch after it."""

    epoch: int
    indices: list[int]
    done: Any


class Batches:
    """Iterable of (epoch, batch) for this rank. Subclasses define the turns of an epoch."""

    same_length = True
    """True, because every rank gets the same number of batches."""

    def __init__(self, items: Any, settings: Settings, *, draws: bool):
        """Create batches of `items`. `draws` says that fetching a sample may use random numbers."""
        self._items, self._settings, self._draws = items, settings, draws
        self._epoch = 0
        self._done: Any = self._none_done()
        if not self.samples:
            raise UsageError("there are no samples", hint="check the content of the data files")
        if self.samples < settings.place[1]:
            raise UsageError(
                f"there are {self.samples} samples for {settings.place[1]} workers", hint="train with fewer workers"
            )

    @property
    def samples(self) -> int:
        """Samples in one epoch."""
        return len(self._items)

    @property
    def epoch(self) -> int:
        """Epoch of the last batch."""
        return self._epoch

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """Iterate from the current position. A yielded batch counts as done, so a state saved then resumes with the next."""
        coming: deque[Turn] = deque()
        own = SeededDataset(self._items, self._settings.seed) if self._draws else PlainDataset(self._items)
        loader = make_loader(own, self._settings, batch_sampler=_Keys(self, coming), collate_fn=self._settings.collate)
        for batch in undrawn(loader) if self._draws and not self._settings.workers else loader:
            turn = coming.popleft()
            self._epoch, self._done = turn.epoch, turn.done
            yield turn.epoch, batch

    def state_dict(self) -> dict[str, Any]:
        """Return the position. It is equal on all ranks that have had the same number of batches."""
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
        """Continue from a saved position with its seed, on any rank of any world size."""
        check_state(state, type(self).__name__)
        if state["samples"] != self.samples:
            raise UsageError(
                f"the data has changed: the saved state has {state['samples']} samples, now there are {self.samples}",
                hint="resume with the same files, or start from scratch",
            )
        self._settings.seed, self._settings.shuffle = int(state["seed"]), bool(state["shuffle"])
        self._epoch, self._done = int(state["epoch"]), state["done"]

    def turns(self, epoch: int, done: Any) -> Iterator[Turn]:
        """Yield this rank's remaining turns of an epoch after the position `done`."""
        raise NotImplementedError(f"{type(self).__name__} needs a turns(epoch, done)")

    def _none_done(self) -> Any:
        return 0

    def _all_turns(self) -> Iterator[Turn]:
        epoch, done = self._epoch, self._done
        while epoch < self._settings.last_epoch:
            yield from self.turns(epoch, done)
            epoch, done = epoch + 1, self._none_done()


class Indexed(Batches):
    """Batches of equal size in the order of the epoch."""

    def __init__(self, items: Any, batch_size: int, settings: Settings, *, draws: bool):
        self._batch_size = at_least_one("batch_size", batch_size)
        super().__init__(items, settings, draws=draws)

    @property
    def batches(self) -> int:
        """Batches in one epoch, on every rank."""
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
    """Samples by number, decoded when they are fetched."""

    def __init__(self, source: Any, decode: Callable[[Any], Any] | None):
        self._source, self._decode = source, decode

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Any:
        found = self._source[index]
        return found if self._decode is None else self._decode(found)


def make_loader(dataset: Any, settings: Settings, **options: Any) -> Any:
    """Return a DataLoader that does not use the script's random generators."""
    generator = torch.Generator().manual_seed(derived_seed(settings.seed, "loader"))
    return torch.utils.data.DataLoader(dataset, generator=generator, **options, **loader_options(settings))


def loader_options(settings: Settings) -> dict[str, Any]:
    options = {"num_workers": settings.workers, **settings.loader}
    if settings.workers:
        options["worker_init_fn"] = partial(in_data_worker, options.get("worker_init_fn"))
    return options


def undrawn(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the batches and restore this process's random generators after each, because fetching seeds them per sample."""
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
    """Return how many of the remaining samples form the next batch of all ranks.

    At least one sample per rank always remains: the last batch but one is made smaller, and if it cannot be (batches of one),
    the last batch takes two.
    """
    most = batch_size * world
    rest = left - most
    if rest <= 0:
        return left
    if rest >= world:
        return most
    return left - world if left >= 2 * world else left


def share(count: int, rank: int, world: int) -> tuple[int, int]:
    """Return one rank's range of a global batch. With fewer samples than ranks some are used twice, so no rank hangs."""
    low, high = cut(count, world, rank)
    return (low, high) if low < high else (rank % count, rank % count + 1)


def at_least_one(name: str, value: Any) -> int:
    """Return the value if it is a whole number above 0, else raise UsageError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{name} is {value!r}, and should be a whole number above 0")
    return value


def ranks(rank: int | None, world: int | None) -> tuple[int, int]:
    """Return (rank, world) as given, or from torch.distributed or the environment."""
    if (rank is None) != (world is None):
        raise UsageError("give both rank and world, or neither")
    if rank is None or world is None:
        rank, world = _detected_ranks()
    if not 0 <= rank < world:
        raise UsageError(f"rank {rank} does not exist in a world of {world}", hint="ranks count from 0")
    return rank, world


def check_state(state: Mapping[str, Any], kind: str) -> None:
    if state.get("version") != STATE_VERSION or state.get("kind") != kind:
        raise UsageError(
            f"this is not the state of {kind}: it says {state.get('kind')}, version {state.get('version')}"
        )


def _detected_ranks() -> tuple[int, int]:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)


class _Keys:
    """Batch sampler for torch's DataLoader: one pass over all epochs, so that its workers are started once."""

    def __init__(self, batches: Batches, coming: deque[Turn]):
        self._batches, self._coming = batches, coming

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for turn in self._batches._all_turns():
            self._coming.append(turn)
            yield [(turn.epoch, index) for index in turn.indices]
