"""Where the batches come from: a DataLoader or Dataset that the run deals out, or an iterator of (epoch, batch) of the user's own."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from importlib import import_module
from typing import Any, NamedTuple

from shoal.core.errors import UsageError
from shoal.sdk.loader import feed_of
from shoal.sdk.run import Run
from shoal.sdk.sampler import DealtFeed
from shoal.train.params import Params

torch: Any = import_module("torch")
data: Any = torch.utils.data


class Piece(NamedTuple):
    """What one worker takes in at once; the last one of its kind completes a step."""

    epoch: int
    batch: Any
    is_last: bool
    samples: int | None
    """Those that count; None: to be counted."""


class Source:
    """Prepared by the run, so that after a resume it goes on where it stood."""

    def __init__(self, run: Run, given: Any, params: Params):
        self._run, self._params = run, params
        loader = _as_loader(given, params)
        self._streams = isinstance(loader, TrainingData)
        self._loader = run.prepare(loader)
        feed = feed_of(self._loader)
        self._dealing = feed.dealing if isinstance(feed, DealtFeed) else None

    @property
    def is_exact(self) -> bool:
        """Whether the run weighs every piece by its samples; else each counts the same."""
        return self._dealing is not None

    @property
    def may_end_early(self) -> bool:
        """Whether one worker may run out of data before the others."""
        return self._streams and not getattr(self._loader.given, "same_length", False)

    @property
    def epoch_samples(self) -> int:
        dealing = self._dealing
        if dealing is not None:
            return dealing.batches * dealing.global_batch if dealing.drop_last else dealing.size
        known = self._params.train_samples or getattr(getattr(self._loader, "given", None), "samples", None)
        if known is None:
            raise UsageError("how many samples make an epoch is not known", hint="set train_samples in the parameters")
        return int(known)

    @property
    def step_samples(self) -> int:
        """Of a full step, over all workers."""
        if self._dealing is not None:
            return self._dealing.global_batch
        return self._params.batch_size * self._params.accumulate * self._run.parallel.data_world

    def pieces(self) -> Generator[Piece]:
        """Until the data ends or the run is to stop. Close it when leaving: that is where a last save is taken."""
        if self._streams:
            for epoch, batch in self._loader:
                yield Piece(epoch, batch, self._run.is_boundary, None)
            return
        for epoch in self._run.epochs():
            for batch in self._loader:
                yield Piece(epoch, batch, self._run.is_boundary, self._run.batch_samples)


class TrainingData(data.IterableDataset):  # type: ignore[misc]
    """A user's iterator of (epoch, batch) in the shape that the run can count, and resume."""

    def __init__(self, given: Any):
        self.given = given
        if callable(getattr(given, "state_dict", None)) and callable(getattr(given, "load_state_dict", None)):
            self.state_dict, self.load_state_dict = given.state_dict, given.load_state_dict

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        for item in self.given:
            if not (isinstance(item, tuple | list) and len(item) == 2 and isinstance(item[0], int)):
                raise UsageError(
                    f"training_data gave a {type(item).__name__}",
                    hint="an iterator gives (epoch, batch), or return a DataLoader or a Dataset",
                )
            yield item[0], item[1]


def _as_loader(given: Any, params: Params) -> Any:
    if isinstance(given, data.DataLoader):
        return given
    if isinstance(given, data.Dataset) and not isinstance(given, data.IterableDataset):
        # What is in memory already is only slowed down by going through another process.
        workers = 0 if type(given) is data.TensorDataset else params.num_workers
        return data.DataLoader(
            given, batch_size=params.batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0
        )
    if hasattr(given, "__iter__"):
        return TrainingData(given)
    raise UsageError(
        f"training_data returned a {type(given).__name__}",
        hint="return a DataLoader, a Dataset, or an iterator of (epoch, batch)",
    )
