"""Where a loader stands: which samples come next on this rank, what has been consumed, and which passes a resumed loop skips.

No torch in here. A *pass* is one iteration over the loader; a pass in which no step was made (a look at the first batch, an
evaluation) leaves the position where it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from shoal.sdk.order import Dealing, Micro, epoch_order


class Feed:
    """The position of one prepared loader."""

    def __init__(self, name: str, *, seed: int = 0, shuffle: bool = True, rank: int = 0):
        self.name, self.seed, self.shuffle, self.rank = name, seed, shuffle, rank
        self.epoch = 0
        """Epochs done, and so the index of the one that is under way or comes next."""
        self.batch = 0
        """Global batches of that epoch that are done."""
        self.skip = 0
        """Passes of the script's loop that were finished before this process started: they yield nothing."""
        self.skipped = 0
        self.now: Micro | None = None
        """What was yielded last in the pass that is open."""
        self.is_used = False
        """Whether a step was made of it, or the loop has gone on without one."""
        self.is_open = False
        self.stepped = False
        """Whether a step was made in the pass that is open."""
        self.passes_count = False
        """Set while nobody tells of steps: then a whole pass is an epoch."""
        self.resumed_at: tuple[int, int] | None = None
        """Where it stood in the checkpoint."""
        self._entry = (0, 0, 0)

    @property
    def batches(self) -> int | None:
        """Global batches per epoch, if that is known."""
        return None

    @property
    def iterations(self) -> int | None:
        """Iterations per epoch, if that is known."""
        return None

    @property
    def position(self) -> tuple[int, int]:
        """(epoch, global batches of it that are consumed). A global batch that is not complete is not consumed."""
        if not self.is_open or self.now is None:
            return self.epoch, self.batch
        return self.epoch, self.now.batch + (1 if self.now.is_last and self.is_used else 0)

    def take(self, micro: Micro) -> None:
        self.now, self.is_used = micro, False

    def use(self) -> None:
        """A step was made, of what was yielded last."""
        if self.is_open:
            self.is_used = self.stepped = True

    def begin(self, *, in_loop: bool = True) -> bool:
        """A pass begins; False if it is one that was finished before and yields nothing.

        Only a `for` loop is taken for one of the script's epochs; `next(iter(loader))` is not.
        """
        if self.is_open:
            self.leave()
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
        """The pass is exhausted."""
        was_over = self.now is None and self.batch > 0
        if self.stepped or self.passes_count or was_over:
            self.epoch, self.batch, self.skip = self.epoch + 1, 0, 0
        else:
            self.epoch, self.batch, self.skip = self._entry
        self.is_open, self.now = False, None

    def leave(self) -> None:
        """The loop was left before the pass was exhausted: as in plain PyTorch, the next pass is another epoch."""
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
        """Go on from there; with `skip` a loop that starts at epoch 0 passes over what is done."""
        self.epoch, self.batch = int(state["epoch"]), int(state["batch"])
        self.seed = int(state["seed"])
        self.skip = self.epoch if skip else 0
        self.resumed_at = (self.epoch, self.batch)


class DealtFeed(Feed):
    """Of a loader over a dataset with a length: the order is ours, so the position is exact at any world size."""

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
        """What the rest of this epoch consists of on this rank."""
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
    """Of a loader whose order is somebody else's: iterations are counted, `parts` of them make a global batch."""

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
        """The iteration of that number in its pass. The last ones of a pass may never come to a whole batch."""
        batch, part = divmod(iteration, self.parts)
        parts = self.parts
        if self.length is not None and batch == self.length // self.parts:
            parts = self.length % self.parts
        return Micro(self.epoch, batch, part, parts, [], 1, 1.0 / parts)


class BatchSampler:
    """What torch's DataLoader asks for indices: lists of (epoch, sample), in the order the feed plans them."""

    def __init__(self, feed: DealtFeed):
        self._feed = feed
        self._coming: deque[Micro] = deque()

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        # Each pass has a queue of its own: what an abandoned pass had fetched ahead must not be mistaken for ours.
        coming = self._coming = deque()
        for micro in self._feed.plan():
            coming.append(micro)
            yield [(micro.epoch, index) for index in micro.indices]

    def __len__(self) -> int:
        return self._feed.iterations

    def taken(self) -> Micro:
        """The micro-batch whose data was handed over now; loaders keep the order of what they asked for."""
        return self._coming.popleft()

    def set_epoch(self, epoch: int) -> None:
        """Harmless: the epoch is counted here."""
