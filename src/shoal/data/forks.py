"""Reset of objects in a forked child (DataLoader workers), because locks, threads and connections belong to the parent."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forkable(Protocol):
    def after_fork(self) -> None: ...


_live: WeakSet[Forkable] = WeakSet()


def renew_after_fork(thing: Forkable) -> None:
    """Call `thing.after_fork()` in every child that is forked from now on."""
    _live.add(thing)


def _renew() -> None:
    for thing in list(_live):
        thing.after_fork()


os.register_at_fork(after_in_child=_renew)
