"""Training data read by shoal.data.stream: each rank reads its share, each sample once, and all ranks make equally many steps.

The stream distributes samples in rounds of one per rank, so at the end of an epoch the first ranks may have one sample more
than the others. That sample never makes a batch alone: it joins a sample held back from the previous batch.

Why this is safe with many readers: every DataLoader worker has its own copy of the stream and waits for no other. Which samples
make a batch follows from the order of the epoch and the `Deal` alone, so all readers of all ranks cut the epoch in the same way
without talking to each other. Only the training process moves the position (`reach`), when it hands out a batch. What workers
have read ahead does not count: a checkpoint covers exactly the batches that were handed out, and after a crash the rest is read
again, with the same random numbers, which depend on the position and not on the worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from shoal.core.errors import UsageError
from shoal.data.order import Deal
from shoal.data.streams import RawSample, Stream
from shoal.sdk.saving.rng import derived_seed, seed_cpu
from shoal.train.data.base import Settings, make_loader, undrawn

torch: Any = import_module("torch")


class Streamed:
    """Iterable of (epoch, batch) of a stream on this rank."""

    def __init__(self, stream: Stream, batch_size: int, settings: Settings):
        stream.batch_size = batch_size
        self._stream, self._settings = stream, settings
        self._loader = make_loader(_Pieces(stream, settings), settings, batch_size=None, collate_fn=_unchanged)

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        stream = self._stream
        while (epoch := stream.epoch) < self._settings.last_epoch:
            stream.begin_pass()
            for done, batch in self._loader if self._settings.workers else undrawn(self._loader):
                stream.reach(done)
                yield epoch, batch
            stream.finish_pass()
            stream.set_epoch(epoch + 1)

    def state(self) -> dict[str, Any]:
        return {"stream": self._stream.state_dict()}

    def load(self, state: Mapping[str, Any]) -> None:
        if "stream" not in state:
            raise UsageError("this state belongs to files that a function read", hint="pass the same read=… again")
        self._stream.load_state_dict(state["stream"])


class Cut(NamedTuple):
    """One batch of a rank before decoding, and the global position after it."""

    done: int
    samples: list[RawSample]


def cut_evenly(stream: Stream, deal: Deal) -> Iterator[Cut]:
    """Yield the batches of one reader. Every rank gets the same number, and every sample of the epoch is in one batch.

    Batches have `deal.batch_size` samples, the last ones fewer. On ranks with one sample more, only the last batch is larger
    than on the others (with a batch size of 1 it has two samples).
    """
    ahead = _Ahead(stream.raw_samples(deal))
    if deal.worker == 0 and (rest := _first_round(stream, deal, ahead)) is not None:
        yield rest
        return
    while samples := ahead.pop(deal.batch_size):
        end = deal.round_end(samples[-1].position)
        left_over = 0 if ahead.has(2) else ahead.length - end
        if _is_lonely(deal, samples, ahead):
            return
        if len(samples) < deal.batch_size:  # the last batch; ranks before this one may have a sample more in it
            yield Cut(deal.round_end(ahead.length - 1), samples)
            continue
        if not 0 < left_over < deal.world_size:
            yield Cut(end, samples)
            continue
        if len(samples) > 1:
            yield Cut(end - deal.world_size, samples[:-1])
        more = ahead.pop(1)
        if not more and deal.rank < left_over:
            more = [stream.raw_sample_at(end + deal.rank)]
        yield Cut(end + deal.world_size, samples[-1:] + more)
        return


def _first_round(stream: Stream, deal: Deal, ahead: _Ahead) -> Cut | None:
    """Return the only batch of a pass that has fewer samples than there are ranks.

    This only happens with the rest of an epoch after a restart with more ranks. Some samples are used twice, so no rank hangs.
    """
    if ahead.has(2):
        return None
    left = ahead.length - deal.base
    if not deal.base and not left:
        raise UsageError("there are no samples in the stream", hint=f"check the content of {stream.source.label}")
    if not deal.base and left < deal.world_size:
        raise UsageError(f"there are {left} samples for {deal.world_size} workers", hint="train with fewer workers")
    if not 0 < left < deal.world_size:
        return None
    samples = ahead.pop(1) or [stream.raw_sample_at(deal.base + deal.rank % left)]
    return Cut(deal.base + deal.world_size, samples)


def _is_lonely(deal: Deal, samples: list[RawSample], ahead: _Ahead) -> bool:
    """Check whether not all ranks would have this batch; the DataLoader worker with the previous batch takes it then."""
    turn = (samples[0].position - deal.base) // deal.world_size
    alone = len(samples) == 1 and not ahead.has(1) and turn > 0 and turn % deal.batch_size == 0
    return alone and deal.round_end(samples[0].position) > ahead.length


class _Ahead:
    """Sample iterator with lookahead. `length` is the epoch's, known once fewer samples are left than requested."""

    def __init__(self, samples: Any):
        self._samples = samples
        self._held: deque[RawSample] = deque()
        self.length = 0

    def has(self, count: int) -> bool:
        while len(self._held) < count:
            try:
                self._held.append(next(self._samples))
            except StopIteration as stop:
                self.length = self.length if stop.value is None else int(stop.value)
                return False
        return True

    def pop(self, count: int) -> list[RawSample]:
        self.has(count)
        return [self._held.popleft() for _ in range(min(count, len(self._held)))]


class _Pieces(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Dataset of (global position after the batch, batch), decoded and collated in the worker that reads it."""

    def __init__(self, stream: Stream, settings: Settings):
        self._stream, self._settings = stream, settings

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        collate = self._settings.collate or torch.utils.data.default_collate
        for done, samples in cut_evenly(self._stream, self._stream.deal()):
            yield done, collate([self._decoded(sample) for sample in samples])

    def _decoded(self, sample: RawSample) -> Any:
        if self._stream.decode is not None:
            seed_cpu(derived_seed(self._settings.seed, self._stream.epoch, sample.position))
        return self._stream.decoded(sample)


def _unchanged(piece: Any) -> Any:
    return piece
