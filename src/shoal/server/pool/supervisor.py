"""Supervisor of the pool: starts the daemon again on lost machines that can be reached by SSH, for example after a reboot."""

from __future__ import annotations

import logging
import time

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.background_loops import Loop
from shoal.core.pool import PoolAdd, Problem
from shoal.server.context import Context
from shoal.server.models.pool import PoolRow
from shoal.server.pool import pool_rows
from shoal.server.pool.add import START_S, ssh_of

logger = logging.getLogger(__name__)
_CHECK_S = 5.0
_PATIENCE_S = 20.0
"""Seconds before the first attempt: a machine that only lost its connection rejoins by itself within this time."""
_MOST_PAUSE_S = 300.0


def give_up_unfinished(ctx: Context) -> None:
    """Mark machines as failed that were being added when the server stopped; called at start."""
    problem = Problem(text="the server stopped while the machine was being added", fix="Add it again.", is_fatal=True)

    def work(session: Session) -> None:
        for row in session.scalars(select(PoolRow).where(PoolRow.state == pool_rows.ADDING)):
            row.state, row.problems = pool_rows.FAILED, [problem.model_dump()]

    ctx.db.write(work)


def start(ctx: Context) -> None:
    PoolSupervisor(ctx).start()


class PoolSupervisor:
    """Loop that starts the daemon of lost machines again, with growing pauses.

    One thread owns `_next_at` and `_pauses`. The slow part, SSH, runs in the pool's threads and reads the machine's row again: it
    may have been removed, or be added by a person, in the meantime. Starting a daemon that runs already does nothing.
    """

    def __init__(self, ctx: Context):
        self._ctx = ctx
        self._next_at: dict[str, float] = {}
        """Machine → time of the next attempt to start its daemon."""
        self._pauses: dict[str, float] = {}
        self._loop = Loop(
            "pool",
            lambda: self.poll(time.monotonic()),
            is_closing=lambda: ctx.live.closing or not ctx.pool.is_head(ctx),
            every_s=_CHECK_S,
        )

    def start(self) -> None:
        self._ctx.loops.start(self._loop)

    def stop(self) -> None:
        self._loop.stop()

    def poll(self, now: float) -> None:
        lost = {m.name for m in self._ctx.engine.capacity() if m.state == "lost"}
        for name in list(self._next_at):
            if name not in lost:
                del self._next_at[name]
                self._pauses.pop(name, None)
        for name in lost:
            if now >= self._next_at.setdefault(name, now + _PATIENCE_S):
                pause = self._pauses.get(name, _PATIENCE_S)
                self._next_at[name], self._pauses[name] = now + pause, min(2 * pause, _MOST_PAUSE_S)
                self._ctx.pool.submit(lambda name=name: self._revive(name))  # type: ignore[misc]

    def _revive(self, name: str) -> None:
        with self._ctx.db.read() as session:
            row = session.scalar(select(PoolRow).where(PoolRow.name == name, PoolRow.via == "ssh"))
        if row is None or row.python is None or row.home is None or row.address is None:
            return
        if self._ctx.pool.steps(row.id) is not None:  # it is still being added
            return
        task = self._ctx.pool.daemon_instructions(
            name, slots=row.slots, python=row.python, home=row.home, address=row.address, gpus=row.gpus
        )
        ssh = ssh_of(self._ctx, PoolAdd.model_validate(row.asked))
        ssh.do({"do": "start", "keep": True, **task}, python=row.python, timeout_s=START_S)
        logger.info("machine %s was lost; its daemon was started again", name)
