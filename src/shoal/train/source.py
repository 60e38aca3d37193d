"""Source of batches: a DataLoader or Dataset that the run distributes, or the user's own iterator of (epoch, batch)."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from importlib import import_module
from typing import Any, NamedTuple

from shoal.core.errors import UsageError
from shoal.sdk.run import Run
from shoal.sdk.samples.loader import feed_of
from shoal.sdk.samples.sampler import DealtFeed
from shoal.train.loading import workers_for
from shoal.train.params import Params

torch: Any = import_module("torch")
data: Any = torch.utils.data


class Piece(NamedTuple):
    """One batch of one worker. The last piece of a step completes it."""

    epoch: int
    batch: Any
    is_last: bool
    samples: int | None
    """Samples that count; None: to be determined from the batch."""


class Source:
    """Training data prepared by the run, so that a resumed training continues where it stopped."""

    def __init__(self, run: Run, given: Any, params: Params):
        self._run, self._params = run, params
        loader = _as_loader(given, params)
        self._streams = isinstance(loader, TrainingData)
        self._loader = run.prepare(loader)
        feed = feed_of(self._loader)
        self._dealing = feed.dealing if isinstance(feed, DealtFeed) else None

    @property
    def is_exact(self) -> bool:
        """True if the run weights every piece by its samples; otherwise all pieces count the same."""
        return self._dealing is not None

    @property
    def may_end_early(self) -> bool:
        """True if one worker may run out of data before the others."""
        return self._streams and not getattr(self._loader.given, "same_length", False)

    @property
    def epoch_samples(self) -> int:
        """Samples of one epoch; raises UsageError if the number is unknown."""
        dealing = self._dealing
        if dealing is not None:
            return dealing.batches * dealing.global_batch if dealing.drop_last else dealing.size
        known = self._params.train_samples or getattr(getattr(self._loader, "given", None), "samples", None)
        if known is None:
            raise UsageError("the number of samples in an epoch is unknown", hint="set train_samples in the parameters")
        return int(known)

    @property
    def step_samples(self) -> int:
        """Samples of a full step, over all workers."""
        if self._dealing is not None:
            return self._dealing.global_batch
        return self._params.batch_size * self._params.accumulate * self._run.parallel.data_world

    def pieces(self) -> Generator[Piece]:
        """Yield batches until the data ends or the run should stop. Close the generator: that makes the last save."""
        if self._streams:
            for epoch, batch in self._loader:
                yield Piece(epoch, batch, self._run.is_boundary, None)
            return
        for epoch in self._run.epochs():
            for batch in self._loader:
                yield Piece(epoch, batch, self._run.is_boundary, self._run.batch_samples)


class TrainingData(data.IterableDataset):  # type: ignore[misc]
    """Wrapper of a user's iterator of (epoch, batch), which the run can count and resume."""

    def __init__(self, given: Any):
        self.given = given
        if callable(getattr(given, "state_dict", None)) and callable(getattr(given, "load_state_dict", None)):
            self.state_dict, self.load_state_dict = given.state_dict, given.load_state_dict

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        for item in self.given:
            if not (isinstance(item, tuple | list) and len(item) == 2 and isinstance(item[0], int)):
                raise UsageError(
                    f"training_data yielded a {type(item).__name__}",
                    hint="yield (epoch, batch), or return a DataLoader or a Dataset",
                )
            yield item[0], item[1]


def _as_loader(given: Any, params: Params) -> Any:
    if isinstance(given, data.DataLoader):
        return given
    if isinstance(given, data.Dataset) and not isinstance(given, data.IterableDataset):
        # Data that is already in memory is only slowed down by another process.
        workers = params.num_workers
        if workers is None or type(given) is data.TensorDataset:
            workers = workers_for(given, params.batch_size)
        return data.DataLoader(
            given, batch_size=params.batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0
        )
    if hasattr(given, "__iter__"):
        return TrainingData(given)
    raise UsageError(
        f"training_data returned a {type(given).__name__}",
        hint="return a DataLoader, a Dataset, or an iterator of (epoch, batch)",
    )
