"""Keeping of the server's clock: continued over restarts, jumps of the system clock noticed and reported, corrected when idle.

While jobs or leases run, the clock only counts elapsed time. Without any, it is set to the time of day again. If that sets it
back, everything that has expired by then is revoked first, durably: a key that has expired once never works again.
"""

from __future__ import annotations

import json
import logging
import time
from contextlib import suppress
from datetime import UTC, datetime

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from shoal.core.background_loops import Loop, Problem
from shoal.core.settings import Layout
from shoal.core.states import AttemptState
from shoal.core.steady_clock import JUMP_S, Reading, SteadyClock
from shoal.server.backup import snapshot
from shoal.server.context import Context
from shoal.server.models.jobs import Attempt
from shoal.server.models.leases import Lease
from shoal.server.models.pool import PoolJoin
from shoal.server.models.server import ServerFact
from shoal.server.models.swarm import SwarmInvitation
from shoal.server.models.users import ApiKey, SessionRow
from shoal.server.models.workspaces import WorkspaceInvitation

logger = logging.getLogger(__name__)
FACT = "clock"
REPORTED_S = 60.0
"""Seconds between the two clocks from which it is reported."""
_STORE_EVERY_S = 60.0


def resume(layout: Layout, clock: SteadyClock) -> SteadyClock:
    """Continue the clock of a data directory, before anything is read or written by time."""
    known = snapshot.fact(layout.database, FACT) if layout.database.exists() else None
    if known is not None:
        with suppress(ValueError, TypeError):  # an unreadable one counts as none
            boot, boot_s, at_s = json.loads(known)
            clock.resume(Reading(str(boot), float(boot_s), float(at_s)))
    return clock


class Timekeeper:
    """Loop that compares the server's clock with the system clock once a second."""

    def __init__(self, ctx: Context, clock: SteadyClock):
        self._ctx, self._clock = ctx, clock
        self._stored_at = float("-inf")
        self._gap_since: float | None = None
        self._loop = Loop("clock", self.pass_once, is_closing=lambda: ctx.live.closing, every_s=1.0)

    def start(self) -> None:
        self._ctx.clock = self._clock
        self._ctx.loops.watch("system clock", self.problem)
        self._ctx.loops.start(self._loop)

    def stop(self) -> None:
        """Stop the loop and store the last reading."""
        self._loop.stop()
        with suppress(Exception):  # on a sick disk the reading of a minute ago has to do
            self._store()

    def problem(self) -> Problem | None:
        """Return a problem while the system clock differs from elapsed time."""
        gap_s = self._clock.gap_s
        if abs(gap_s) < REPORTED_S or self._gap_since is None:
            return None
        text = f"the system clock was changed by {gap_s:+.0f} s; limits, leases and keys still count elapsed time"
        return Problem("system clock", "changed", time.monotonic() - self._gap_since, text)

    def pass_once(self) -> None:
        if (jumped_s := self._clock.step()) is not None:
            logger.warning("the system clock jumped by %+.1f s; deadlines count elapsed time", jumped_s)
        gap_s = self._clock.gap_s
        self._gap_since = None if abs(gap_s) < REPORTED_S else self._gap_since or time.monotonic()
        if abs(gap_s) > JUMP_S and self._is_idle():
            self._set_by_wall(gap_s)
        if time.monotonic() - self._stored_at > _STORE_EVERY_S:
            self._store()

    def _is_idle(self) -> bool:
        with self._ctx.db.read() as session:
            running = session.scalar(select(Attempt.id).where(Attempt.state != AttemptState.ENDED.value).limit(1))
            rented = session.scalar(select(Lease.id).where(Lease.ended_at.is_(None)).limit(1))
        return running is None and rented is None

    def _set_by_wall(self, gap_s: float) -> None:
        if gap_s < 0:
            now = datetime.fromtimestamp(self._clock.now_s(), UTC)
            self._ctx.db.write(lambda session: _revoke_expired(session, now), essential=True)
        self._clock.set_by_wall()
        self._store()
        logger.info("nothing runs: the server's clock was set to the system clock, by %+.1f s", gap_s)

    def _store(self) -> None:
        text = json.dumps(self._clock.reading())
        self._ctx.db.write(lambda session: session.merge(ServerFact(name=FACT, value=text)) and None, essential=True)
        self._stored_at = time.monotonic()


def _revoke_expired(session: Session, now: datetime) -> None:
    """Revoke everything that has expired, before the clock is set back."""
    for table in (ApiKey, WorkspaceInvitation, SwarmInvitation):
        session.execute(update(table).where(table.expires_at <= now, table.revoked_at.is_(None)).values(revoked_at=now))
    for short_lived in (SessionRow, PoolJoin):
        session.execute(delete(short_lived).where(short_lived.expires_at <= now))
