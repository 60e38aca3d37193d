"""Counters that a job prints, and which of them counts the whole job: loops inside others, and loops that start again. Pure.

Output is thinned before it is read (one state of a bar per second), so a counter may be seen neither at its start nor at its end.
"""

from __future__ import annotations

from collections.abc import Iterator

STALE_S = 300.0
_MOST = 32


class Counter:
    """One loop of the script, recognised by its total and the words before it."""

    # No dataclass: agents start without that module.
    __slots__ = (
        "at",
        "epoch",
        "is_of_epoch",
        "name",
        "outer",
        "outer_at",
        "ran_on",
        "restarts",
        "seen_at",
        "spans_epochs",
        "total",
    )

    def __init__(
        self,
        name: bytes,
        total: int,
        at: int,
        seen_at: float,
        epoch: int | None,
        is_of_epoch: bool,
        outer: Counter | None,
    ):
        self.name, self.total, self.at, self.seen_at = name, total, at, seen_at
        self.epoch = epoch
        """Number of the epoch printed last before or beside the counter."""
        self.is_of_epoch = is_of_epoch
        """True if it is printed with the number of an epoch, as in `Epoch 3: 50%|`, so that it likely starts again with each."""
        self.outer = outer
        """Loop that was running when this one appeared."""
        self.outer_at = 0
        """State of the outer loop when this one was last seen."""
        self.restarts = 0
        self.spans_epochs = False
        """True if it continued to count into another epoch, so that it counts all epochs."""
        self.ran_on = False
        """True if it continued after the outer loop was complete, which therefore is not its outer loop."""

    @property
    def is_complete(self) -> bool:
        return self.at >= self.total

    @property
    def starts_again(self) -> bool:
        """True if one run of this counter is only a part of the job."""
        return self.restarts > 0 or (self.is_of_epoch and not self.spans_epochs)

    def update(self, at: int, now: float, epoch: int | None) -> None:
        if at < self.at:
            self.restarts += 1
            self.spans_epochs = False
        elif at > self.at > 0 and epoch is not None and (self.epoch is None or epoch > self.epoch):
            self.spans_epochs = True
        elif at > self.at and self.outer is not None and self.outer.is_complete and self.outer_at < self.outer.total:
            self.ran_on = True
        self.at, self.seen_at, self.epoch = at, now, epoch


class Counters:
    """All counters seen so far; `main` is the one that counts most of the job."""

    def __init__(self) -> None:
        self._seen: list[Counter] = []
        self.main: Counter | None = None
        self.inner: Counter | None = None
        """Loop inside `main` that was seen last."""

    def __iter__(self) -> Iterator[Counter]:
        return iter(self._seen)

    def note(
        self, name: bytes, at: int, total: int, now: float, *, epoch: int | None, is_of_epoch: bool = False
    ) -> Counter:
        """Take in a state that was printed; return its counter."""
        counter = self._find(name, at, total)
        if counter is None:
            running = self.main if self.main and not self.main.is_complete and not _stale(self.main, now) else None
            counter = Counter(name, total, at, now, epoch, is_of_epoch, running)
            self._forget_oldest()
            self._seen.append(counter)
        else:
            counter.name = name
            counter.update(at, now, epoch)
        self._place(counter, now)
        return counter

    def _find(self, name: bytes, at: int, total: int) -> Counter | None:
        same = [c for c in self._seen if c.total == total]
        for counter in same:
            if counter.name == name:
                return counter
        # The words before a bar may change with each state.
        return next((c for c in reversed(same) if 0 < c.at <= at), None)

    def _place(self, counter: Counter, now: float) -> None:
        outer = counter.outer
        if outer is not None and (counter.ran_on or _stale(outer, now)):
            counter.outer = outer = None
        for inner in self._seen:
            # The supposed outer loop starts again while the inner one counts on: it is the other way round.
            if inner.outer is counter and counter.restarts and not inner.starts_again:
                inner.outer, counter.outer, counter.outer_at = None, inner, inner.at
                self.main, self.inner = inner, counter
                return
        if outer is None:
            if self.main is not counter:
                self.inner = None
            self.main = counter
        elif outer is self.main:
            counter.outer_at, self.inner = outer.at, counter

    def _forget_oldest(self) -> None:
        if len(self._seen) >= _MOST:
            oldest = min((c for c in self._seen if c is not self.main), key=lambda c: c.seen_at)
            self._seen.remove(oldest)


def _stale(counter: Counter, now: float) -> bool:
    return now - counter.seen_at > STALE_S
