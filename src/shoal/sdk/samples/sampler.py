"""Position of a loader: which samples come next on this rank, which are consumed, and which passes a resumed loop skips.

This module does not use torch. A *pass* is one iteration over the loader. A pass without a step (fetching only the first
batch, an evaluation) does not change the position.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from shoal.sdk.samples.order import Dealing, Micro, epoch_order


class Feed:
    """Position of one prepared loader."""

    def __init__(self, name: str, *, seed: int = 0, shuffle: bool = True, rank: int = 0):
        self.name, self.seed, self.shuffle, self.rank = name, seed, shuffle, rank
        self.epoch = 0
        """Number of finished epochs, which is also the index of the current or next one."""
        self.batch = 0
        """Number of finished global batches of that epoch."""
        self.skip = 0
        """Number of passes of the script's loop that were finished before this process started: they yield nothing."""
        self.skipped = 0
        self.now: Micro | None = None
        """Micro-batch that was yielded last in the open pass."""
        self.is_used = False
        """True if a step used that micro-batch, or the loop has continued without one."""
        self.is_open = False
        self.stepped = False
        """True if a step was made in the open pass."""
        self.passes_count = False
        """True if steps are not reported: then every complete pass counts as an epoch."""
        self.resumed_at: tuple[int, int] | None = None
        """Epoch and batch in the checkpoint, or None."""
        self._entry = (0, 0, 0)

    @property
    def batches(self) -> int | None:
        """Number of global batches per epoch; None if unknown."""
        return None

    @property
    def iterations(self) -> int | None:
        """Number of iterations per epoch; None if unknown."""
        return None

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and number of its consumed global batches. An incomplete global batch does not count as consumed."""
        if not self.is_open or self.now is None:
            return self.epoch, self.batch
        return self.epoch, self.now.batch + (1 if self.now.is_last and self.is_used else 0)

    def begin_batch(self, micro: Micro) -> None:
        self.now, self.is_used = micro, False

    def use(self) -> None:
        """Note that a step used the last micro-batch."""
        if self.is_open:
            self.is_used = self.stepped = True

    def begin(self, *, in_loop: bool = True) -> bool:
        """Begin a pass. Return False if it was finished before the resume and therefore yields nothing.

        Only a `for` loop counts as one of the script's epochs; `next(iter(loader))` does not.
        """
        if self.is_open:
            self.abandon()
        self._entry = (self.epoch, self.batch, self.skip)
        self.now, self.stepped = None, False
        if self.skip and in_loop:
            self.skip -= 1
            self.skipped += 1
            return False
        self.skip = 0
        self.is_open = True
        return True

    def end(self) -> None:
        """End a pass that is exhausted."""
        was_over = self.now is None and self.batch > 0
        if self.stepped or self.passes_count or was_over:
            self.epoch, self.batch, self.skip = self.epoch + 1, 0, 0
        else:
            self.epoch, self.batch, self.skip = self._entry
        self.is_open, self.now = False, None

    def abandon(self) -> None:
        """End a pass that the loop left early. As in plain PyTorch, the next pass is the next epoch."""
        if not self.is_open:
            return
        if self.stepped:
            self.epoch, self.batch = self.epoch + 1, 0
        else:
            self.epoch, self.batch, self.skip = self._entry
        self.is_open, self.now = False, None

    def state(self) -> dict[str, Any]:
        epoch, batch = self.position
        return {"name": self.name, "seed": self.seed, "shuffle": self.shuffle, "epoch": epoch, "batch": batch}

    def load(self, state: Mapping[str, Any], *, skip: bool) -> None:
        """Set the position from a checkpoint. With `skip`, a loop that starts at epoch 0 skips the finished epochs."""
        self.epoch, self.batch = int(state["epoch"]), int(state["batch"])
        self.seed = int(state["seed"])
        self.skip = self.epoch if skip else 0
        self.resumed_at = (self.epoch, self.batch)


class DealtFeed(Feed):
    """Position of a loader over a dataset with a length. Shoal makes the order, so it is exact at any world size."""

    def __init__(self, name: str, dealing: Dealing, *, seed: int, shuffle: bool, rank: int):
        super().__init__(name, seed=seed, shuffle=shuffle, rank=rank)
        self.dealing = dealing

    @property
    def batches(self) -> int:
        return self.dealing.batches

    @property
    def iterations(self) -> int:
        return self.dealing.iterations

    def plan(self) -> Iterator[Micro]:
        """Yield the remaining micro-batches of this epoch on this rank."""
        epoch = self.epoch
        order = epoch_order(self.dealing.size, self.seed, epoch, shuffle=self.shuffle)
        for batch in range(self.batch, self.dealing.batches):
            yield from self.dealing.micros(order, epoch, batch, self.rank)

    def state(self) -> dict[str, Any]:
        more = {
            "size": self.dealing.size,
            "global_batch": self.dealing.global_batch,
            "drop_last": self.dealing.drop_last,
        }
        return super().state() | more

    def load(self, state: Mapping[str, Any], *, skip: bool) -> None:
        super().load(state, skip=skip)
        self.dealing = replace(self.dealing, global_batch=int(state["global_batch"]))


class CountedFeed(Feed):
    """Position of a loader with its own order: iterations are counted, and `parts` of them make a global batch."""

    def __init__(self, name: str, *, parts: int = 1, length: int | None = None):
        super().__init__(name, shuffle=False)
        self.parts, self.length = parts, length

    @property
    def batches(self) -> int | None:
        return None if self.length is None else -(-self.length // self.parts)

    @property
    def iterations(self) -> int | None:
        return self.length

    def micro(self, iteration: int) -> Micro:
        """Return the micro-batch of an iteration in its pass. The last global batch of a pass may have fewer parts."""
        batch, part = divmod(iteration, self.parts)
        parts = self.parts
        if self.length is not None and batch == self.length // self.parts:
            parts = self.length % self.parts
        return Micro(self.epoch, batch, part, parts, [], 1, 1.0 / parts)


class BatchSampler:
    """Batch sampler for torch's DataLoader: yields lists of (epoch, sample), in the order of the feed."""

    def __init__(self, feed: DealtFeed):
        self._feed = feed
        self._coming: deque[Micro] = deque()

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        # Each pass has its own queue: batches that an abandoned pass had prefetched must not be counted in this one.
        coming = self._coming = deque()
        for micro in self._feed.plan():
            coming.append(micro)
            yield [(micro.epoch, index) for index in micro.indices]

    def __len__(self) -> int:
        return self._feed.iterations

    def pop_delivered(self) -> Micro:
        """Return the micro-batch whose data was just delivered; loaders deliver in the order of their requests."""
        return self._coming.popleft()

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: the feed counts the epochs."""
