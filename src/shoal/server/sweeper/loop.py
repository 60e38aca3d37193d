"""The sweeper at work: hears which jobs have changed, looks at their sweeps, decides and acts. One thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from sqlalchemy import select

from shoal.core.errors import ShoalError
from shoal.core.loops import Loop
from shoal.core.sweeps import SweepState
from shoal.server.context import Context
from shoal.server.models.sweeps import Sweep
from shoal.server.sweeper.act import AT_ONCE, act
from shoal.server.sweeper.decide import next_actions
from shoal.server.sweeper.memory import SweepMemory, load

logger = logging.getLogger(__name__)
_TICK_S = 1.0
_LOOK_EVERY_S = 30.0
"""All live trials are looked at so often, should a change not have been heard of."""
_PAUSE_S = 0.1
"""At most between two passes; what changes meanwhile is looked at together."""


class Sweeper:
    def __init__(self, ctx: Context, *, store_every_s: float = 0.5):
        """Results of trials that run are written no more often than that: each time is an fsync."""
        self.ctx, self._store_every_s = ctx, store_every_s
        self._heard = ctx.live.listen()
        self._loop = Loop(
            "sweeper", self._step, wait=self._heard.wait, is_closing=lambda: ctx.live.closing, every_s=_TICK_S
        )
        self._known: dict[str, SweepMemory] | None = None
        """Sweeps that run; None until they have been read."""
        self._stale: set[str] = set()
        """Sweeps whose rows are to be read anew."""
        self._looked_at = 0.0

    def start(self) -> None:
        self.ctx.loops.start(self._loop)

    def stop(self) -> None:
        """After `live.close()`: let the present pass end."""
        self._loop.stop()

    def _step(self) -> None:
        began = time.monotonic()
        self.pass_once()
        if not self.ctx.live.closing:
            time.sleep(min(_PAUSE_S, time.monotonic() - began))

    def pass_once(self) -> None:
        """Over the sweeps of which something has been heard, or that are due."""
        heard = self._heard.take()
        known = self._read(heard)
        is_due = time.monotonic() - self._looked_at >= _LOOK_EVERY_S
        if is_due:
            self._looked_at = time.monotonic()
        for memory in list(known.values()):
            jobs = set(memory.by_job) if is_due else memory.unsettled | (heard & memory.by_job.keys())
            if jobs or memory.id in heard or not memory.is_stored:
                with _logged(memory.id):
                    self._attend(memory, jobs)

    def _read(self, heard: set[str]) -> dict[str, SweepMemory]:
        """Those that are new, that people have changed, or about which we were wrong."""
        if self._known is None:
            with self.ctx.db.read() as session:
                opened = select(Sweep.id).where(Sweep.state == SweepState.RUNNING.value)
                self._stale, self._known = set(session.scalars(opened)), {}
        heard |= self._stale
        for sweep_id in [h for h in heard if h.startswith("swp_")]:
            with _logged(sweep_id):
                self._refresh(self._known, sweep_id)
        return self._known

    def _refresh(self, all_: dict[str, SweepMemory], sweep_id: str) -> None:
        with self.ctx.db.read() as session:
            revision = session.scalar(select(Sweep.revision).where(Sweep.id == sweep_id))
            known = all_.get(sweep_id)
            if sweep_id not in self._stale and known is not None and known.revision == revision:
                return
            fresh = load(session, sweep_id)
        self._stale.discard(sweep_id)
        all_.pop(sweep_id, None)
        if fresh is not None:
            all_[sweep_id] = fresh

    def _attend(self, memory: SweepMemory, jobs: Collection[str]) -> None:
        """Look, decide and act until there is nothing more to do."""
        self._stale.add(memory.id)  # should anything fail half-way
        while not self.ctx.live.closing:
            if jobs:
                with self.ctx.db.read() as session:
                    memory.look(session, jobs)
            actions = next_actions(memory.sight()).first(AT_ONCE)
            if not actions.any and not self._should_store(memory):
                break
            memory.stored_at = time.monotonic()
            touched = act(self.ctx, memory, actions, by=self._heard)
            if touched is None:
                return
            jobs = touched
        self._stale.discard(memory.id)

    def _should_store(self, memory: SweepMemory) -> bool:
        return not memory.is_stored and time.monotonic() - memory.stored_at >= self._store_every_s


@contextmanager
def _logged(what: str) -> Iterator[None]:
    """What fails for one sweep must not hold up the others; it is tried again."""
    try:
        yield
    except ShoalError as error:
        logger.warning("sweeper, %s: %s", what, error)
    except Exception:
        logger.exception("sweeper, %s", what)
