"""The sweeper's loop: receives the ids of changed jobs, reads their sweeps, decides and acts.

Why this is safe: one thread runs every pass and alone uses `_known`, `_stale` and each `SweepMemory`; other threads only put
ids into the listener, which has its own lock. Users change sweeps in the database meanwhile and increment `revision`: the
transaction of `act` compares it with the memory's and writes nothing if it differs, and the sweep is read again.
A sweep is in `_stale` while it is processed, so after an error halfway its memory is discarded and read again. A crash at
any point loses nothing: trials and their jobs are written together, and the memory is rebuilt from the rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from sqlalchemy import select

from shoal.core.background_loops import Loop, describe
from shoal.core.sweeps import SweepState
from shoal.server.context import Context
from shoal.server.models.sweeps import Sweep
from shoal.server.sweeper.act import AT_ONCE, act
from shoal.server.sweeper.decide import next_actions
from shoal.server.sweeper.memory import SweepMemory, load

logger = logging.getLogger(__name__)
_TICK_S = 1.0
_LOOK_EVERY_S = 30.0
"""Seconds between two reads of all live trials, in case a notification was lost."""
_PAUSE_S = 0.1
"""Maximum pause between two passes, in seconds; changes in this time are handled together."""


class Sweeper:
    """The sweeper's thread: `start` it once per server. Tests call `pass_once` instead."""

    def __init__(self, ctx: Context, *, store_every_s: float = 0.5):
        """Create the sweeper. `store_every_s` limits how often results of running trials are written: each is an fsync."""
        self.ctx, self._store_every_s = ctx, store_every_s
        self._heard = ctx.live.listen()
        self._loop = Loop(
            "sweeper", self._step, wait=self._heard.wait, is_closing=lambda: ctx.live.closing, every_s=_TICK_S
        )
        self._known: dict[str, SweepMemory] | None = None
        """Running sweeps by id; None before the first read."""
        self._stale: set[str] = set()
        """Sweeps that must be read from the database again."""
        self._looked_at = 0.0

    def start(self) -> None:
        self.ctx.loops.start(self._loop)

    def stop(self) -> None:
        """Wait for the current pass to finish and end the thread. Call `live.close()` first."""
        self._loop.stop()

    def _step(self) -> None:
        began = time.monotonic()
        self.pass_once()
        if not self.ctx.live.closing:
            time.sleep(min(_PAUSE_S, time.monotonic() - began))

    def pass_once(self) -> None:
        """Process the sweeps that were reported as changed; every `_LOOK_EVERY_S` seconds, all of them.

        A sweep that fails does not block the others. It is tried again in the next pass; the first error is raised at the end.
        """
        heard = self._heard.pop_changed()
        failures: list[Exception] = []
        known = self._read(heard, failures)
        is_due = time.monotonic() - self._looked_at >= _LOOK_EVERY_S
        if is_due:
            self._looked_at = time.monotonic()
        for memory in list(known.values()):
            jobs = set(memory.by_job) if is_due else memory.unsettled | (heard & memory.by_job.keys())
            if jobs or memory.id in heard or not memory.is_stored:
                with _collected(failures, memory.id):
                    self._process(memory, jobs)
        if failures:
            raise failures[0]

    def _read(self, heard: set[str], failures: list[Exception]) -> dict[str, SweepMemory]:
        """Return all running sweeps, after reading those that are new, changed by users, or outdated."""
        if self._known is None:
            with self.ctx.db.read() as session:
                opened = select(Sweep.id).where(Sweep.state == SweepState.RUNNING.value)
                self._stale, self._known = set(session.scalars(opened)), {}
        heard |= self._stale
        for sweep_id in [h for h in heard if h.startswith("swp_")]:
            with _collected(failures, sweep_id):
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

    def _process(self, memory: SweepMemory, jobs: Collection[str]) -> None:
        """Read, decide and act until there is nothing more to do."""
        self._stale.add(memory.id)  # in case anything below fails
        while not self.ctx.live.closing:
            if jobs:
                with self.ctx.db.read() as session:
                    memory.refresh(session, jobs)
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
def _collected(failures: list[Exception], sweep_id: str) -> Iterator[None]:
    """Add an error of one sweep to the list. All but the first are logged here; the first by the loop, once per text."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in sweep {sweep_id}")
        if failures:
            logger.warning("sweeper, %s: %s", sweep_id, describe(error))
        failures.append(error)
