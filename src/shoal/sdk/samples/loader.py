"""Prepared loaders: a torch DataLoader in Shoal's sample order, or any other loader with its iterations counted.

In both, the code after the `yield` runs when the loop fetches the next batch: that is the end of an iteration.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any, Protocol

from shoal.sdk.samples.order import Dealing, Micro
from shoal.sdk.samples.sampler import BatchSampler, CountedFeed, DealtFeed, Feed
from shoal.sdk.saving.rng import derived_seed, keep_cpu, seed_cpu
from shoal.sdk.signals import in_data_worker

torch: Any = import_module("torch")
data: Any = torch.utils.data


class Host(Protocol):
    """Receiver of the events of a loop (Training)."""

    def pass_begins(self, feed: Feed) -> None: ...
    def batch_delivered(self, feed: Feed, micro: Micro) -> None: ...
    def iteration_over(self, feed: Feed) -> None: ...
    def pass_ended(self, feed: Feed) -> None: ...
    def pass_skipped(self, feed: Feed) -> None: ...
    def shortened(self, feed: Feed) -> bool:
        """Check whether this pass belongs to a skipped epoch: one batch is enough then."""
        ...


def prepare_loader(
    loader: Any, host: Host, *, name: str, seed: int, rank: int, world: int, accumulate: int
) -> tuple[Any, Feed, str | None]:
    """Return the loader to use instead, its feed, and a warning about its order or None."""
    shuffle = _shuffle_of(loader)
    if shuffle is None:
        counted = CountedFeed(name, parts=accumulate, length=_length(loader))
        return count(loader, counted, host), counted, _why_not(loader)
    sampler = loader.sampler
    size, batch_size = len(loader.dataset), int(loader.batch_size)
    dealing = Dealing(
        size=size,
        global_batch=batch_size * world * accumulate,
        batch_size=batch_size,
        world=world,
        drop_last=bool(loader.drop_last),
    )
    feed = DealtFeed(name, dealing, seed=_seed_of(sampler, seed), shuffle=shuffle, rank=rank)
    return PreparedLoader(loader, feed, host), feed, None


class PreparedLoader(data.DataLoader):  # type: ignore[misc]
    """DataLoader with the options of the one it was made from, in the sample order of its feed."""

    def __init__(self, like: Any, feed: DealtFeed, host: Host):
        options: dict[str, Any] = {
            key: getattr(like, key)
            for key in ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "persistent_workers")
        }
        for key in ("multiprocessing_context", "prefetch_factor", "pin_memory_device", "in_order"):
            if getattr(like, key, None) not in (None, ""):
                options[key] = getattr(like, key)
        if like.num_workers > 0:
            options["worker_init_fn"] = partial(in_data_worker, like.worker_init_fn)
        sampler = BatchSampler(feed)
        # Its own generator: an iterator must never draw from the generators of the script.
        generator = torch.Generator().manual_seed(derived_seed(feed.seed, feed.name))
        super().__init__(like.dataset, batch_sampler=sampler, generator=generator, **options)
        self._shoal_feed, self._shoal_host = feed, host
        self._shoal_draws = not _is_plain(like)
        # DataLoader forbids setting these attributes, and has no batch size if there is a batch sampler.
        self.__dict__.update(batch_size=like.batch_size, drop_last=like.drop_last, sampler=sampler)

    def __iter__(self) -> Iterator[Any]:
        return _one_pass(self._shoal_feed, self._shoal_host, self._batches)

    def _batches(self) -> Iterator[tuple[Micro, Any]]:
        batches = super().__iter__()
        in_process = self.num_workers == 0 and self._shoal_draws
        while True:
            put_back = keep_cpu() if in_process else None
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                if put_back is not None:
                    put_back()
            yield self.batch_sampler.pop_delivered(), batch

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: the feed counts the epochs."""

    def _get_iterator(self) -> Any:
        """Return an iterator that fetches by our keys (epoch, index); `loader.dataset` stays the user's dataset."""
        own = self.dataset
        seed = self._shoal_feed.seed
        self.__dict__["dataset"] = SeededDataset(own, seed) if self._shoal_draws else PlainDataset(own)
        try:
            return super()._get_iterator()
        finally:
            self.__dict__["dataset"] = own


class SeededDataset:
    """Dataset that seeds the random generators by (seed, epoch, sample) before it fetches a sample.

    Augmentations then do not depend on workers, world size or restarts. For collating, the generators are seeded by the
    first sample of the batch.
    """

    def __init__(self, dataset: Any, seed: int):
        self._dataset, self._seed = dataset, seed
        inner = dataset
        while type(inner) is data.Subset:
            inner = inner.dataset
        self._fetches_many = callable(getattr(inner, "__getitems__", None))

    def __getitems__(self, keys: list[tuple[int, int]]) -> Any:
        epoch, first = keys[0]
        if self._fetches_many:
            seed_cpu(derived_seed(self._seed, epoch, first))
            found = self._dataset.__getitems__([index for _, index in keys])
        else:
            found = [self[key] for key in keys]
        seed_cpu(derived_seed(self._seed, epoch, first, "collate"))
        return found

    def __getitem__(self, key: tuple[int, int]) -> Any:
        epoch, index = key
        seed_cpu(derived_seed(self._seed, epoch, index))
        return self._dataset[index]

    def __len__(self) -> int:
        return len(self._dataset)


class PlainDataset:
    """Dataset whose samples draw no random numbers: it only removes the epoch from the keys."""

    def __init__(self, dataset: Any):
        self._dataset = dataset

    def __getitem__(self, key: tuple[int, int]) -> Any:
        return self._dataset[key[1]]

    def __len__(self) -> int:
        return len(self._dataset)


def count(loader: Any, feed: CountedFeed, host: Host) -> Any:
    """Make the loader count its iterations; return the same object."""
    kind = type(loader)
    if not hasattr(kind, "_shoal_counts"):

        def passes(own: Any) -> Iterator[Any]:
            return _one_pass(own._shoal_feed, own._shoal_host, lambda: _counted(own, kind))

        members = {"__iter__": passes, "__module__": kind.__module__, "_shoal_counts": True}
        loader.__class__ = type(kind.__name__, (kind,), members)
    loader.__dict__.update(_shoal_feed=feed, _shoal_host=host, _shoal_goes_on=False)
    return loader


def _counted(loader: Any, kind: Any) -> Iterator[tuple[Micro, Any]]:
    """Yield the batches of a loader with its own order, beginning at the position of its feed."""
    feed = loader._shoal_feed
    goes_on, loader.__dict__["_shoal_goes_on"] = loader._shoal_goes_on, False
    done = feed.batch * feed.parts
    if not goes_on and callable(set_epoch := getattr(loader, "set_epoch", None)):
        set_epoch(feed.epoch)
    for number, batch in enumerate(kind.__iter__(loader), done if goes_on else 0):
        if number >= done:
            yield feed.micro(number), batch


def _one_pass(feed: Feed, host: Host, batches: Callable[[], Iterator[tuple[Micro, Any]]]) -> Iterator[Any]:
    """Yield the batches of one pass and report its events to the host.

    The code after the `yield` runs when the loop fetches the next batch; `finally` also runs when the loop is left.
    """
    if not feed.begin(in_loop=_is_called_by_loop(sys._getframe(1))):
        host.pass_skipped(feed)
        return
    host.pass_begins(feed)
    try:
        for micro, batch in batches():
            feed.begin_batch(micro)
            host.batch_delivered(feed, micro)
            yield batch
            feed.is_used = True
            host.iteration_over(feed)
            if host.shortened(feed):
                break
        feed.end()
    finally:
        host.pass_ended(feed)
        feed.abandon()


def load_stream(loader: Any, state: Any) -> None:
    """Resume a loader by its own state, without reading earlier batches again."""
    loader.load_state_dict(state)
    loader.__dict__["_shoal_goes_on"] = True


def let_go(prepared: Any) -> None:
    """End the processes a loader keeps for its next pass: torch would report their end at exit as a failure."""
    if getattr(prepared, "_iterator", None) is not None:
        prepared._iterator = None


def feed_of(prepared: Any) -> Feed:
    """Return the feed (position) of a prepared loader."""
    feed: Feed = prepared._shoal_feed
    return feed


def is_loader(value: Any) -> bool:
    return isinstance(value, (data.DataLoader, data.IterableDataset))


def keeps_state(loader: Any) -> bool:
    return callable(getattr(loader, "state_dict", None)) and callable(getattr(loader, "load_state_dict", None))


def _shuffle_of(loader: Any) -> bool | None:
    """Return whether the loader shuffles; None if Shoal cannot make its order."""
    if not isinstance(loader, data.DataLoader) or isinstance(loader.dataset, data.IterableDataset):
        return None
    if type(loader.batch_sampler) is not data.BatchSampler or loader.batch_size is None:
        return None
    sampler = loader.sampler
    if type(sampler) is data.SequentialSampler:
        return False
    if type(sampler) is data.RandomSampler:
        plain = not sampler.replacement and sampler.num_samples == len(loader.dataset)
        return True if plain else None
    if type(sampler) is data.DistributedSampler:
        return bool(sampler.shuffle)
    return None


def _seed_of(sampler: Any, seed: int) -> int:
    return derived_seed(seed, sampler.seed) if type(sampler) is data.DistributedSampler and sampler.seed else seed


def _why_not(loader: Any) -> str | None:
    if keeps_state(loader):
        return None
    if isinstance(getattr(loader, "dataset", loader), data.IterableDataset):
        return (
            "an iterable dataset without state_dict is resumed by reading all earlier batches again, and every worker reads "
            "all of it unless the dataset splits itself"
        )
    return (
        f"a loader with its own {type(loader.sampler).__name__} keeps its order: it is resumed by skipping the batches already "
        "used, which is exact only if the order is the same in every run"
    )


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def _is_plain(loader: Any) -> bool:
    """Check whether fetching draws no random numbers: a TensorDataset with torch's own collate function."""
    if loader.collate_fn is not data.default_collate or loader.worker_init_fn is not None:
        return False
    dataset = loader.dataset
    while type(dataset) is data.Subset:
        dataset = dataset.dataset
    return bool(type(dataset) is data.TensorDataset)


def _is_called_by_loop(frame: Any) -> bool:
    """Check whether a `for` loop (also through enumerate or zip) fetches the first batch, not a call of next()."""
    try:
        return bool(dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("FOR_ITER"))
    except (AttributeError, IndexError):
        return True
