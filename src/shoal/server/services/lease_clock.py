"""The time of leases: each ends when it is over, and its person is reminded before. One thread, woken by every change."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.durations import duration
from shoal.core.loops import Loop
from shoal.core.schema import utcnow
from shoal.server.context import Context
from shoal.server.mail import Letter
from shoal.server.models.jobs import Job
from shoal.server.models.leases import Lease
from shoal.server.models.people import User
from shoal.server.services import lease_rows
from shoal.server.services.accounts import OWNER_EMAIL
from shoal.server.services.events import tell

REMINDERS_S = (86_400, 3_600, 600)
NOTICE_S = float(REMINDERS_S[1])
"""With less left than this, every page of the console says so to the lease's person."""
OVER = "its time was over"
_LONGEST_WAIT_S = 30.0
"""The wall clock may be set meanwhile."""
_LETTER = """\
Your lease '{name}' ends at {until}. All sessions are then closed and running processes are stopped; its files
are kept as a snapshot.

To go on, press Extend in the console, or run:

  shoal machine extend {name} --time 8h
"""


class LeaseClock:
    def __init__(self, ctx: Context):
        self._ctx = ctx
        self._loop = Loop("leases", self._step, wait=ctx.live.leases.wait, is_closing=lambda: ctx.live.closing)

    def start(self) -> None:
        self._ctx.loops.start(self._loop)

    def stop(self) -> None:
        """After `live.close()`."""
        self._loop.stop()

    def _step(self) -> float:
        self._ctx.live.leases.clear()
        return self.look(utcnow())

    def look(self, now: datetime) -> float:
        """End what is over, remind of what soon will be; seconds until there is more to do."""
        running = select(Lease).where(Lease.ended_at.is_(None), Lease.expires_at.is_not(None))
        with self._ctx.db.read() as session:
            leases = list(session.scalars(running))
        moments = [now + timedelta(seconds=_LONGEST_WAIT_S)]
        for lease in leases:
            expires = lease.expires_at or now
            if expires <= now:
                self._end(lease.id, lease.job_id)
                continue
            moments.append(expires)
            left_s = (expires - now).total_seconds()
            if (due := due_reminder(lease.time_s, left_s, lease.reminded_s)) is not None:
                self._remind(lease, due, left_s)
            moments += [m for r in REMINDERS_S if (m := expires - timedelta(seconds=r)) > now]
        return max(0.0, (min(moments) - utcnow()).total_seconds())

    def _end(self, lease_id: str, job_id: str) -> None:
        # Nobody gets in or stays in from now on, whatever becomes of the rest.
        self._ctx.gateway.drop(lease_id)
        self._ctx.db.write(
            lambda session: lease_rows.end(session, session.get_one(Lease, lease_id), OVER), essential=True
        )
        self._ctx.live.job_changed(job_id, schedule=True)

    def _remind(self, lease: Lease, due: int, left_s: float) -> None:
        text = f"lease '{lease.name}' ends in {duration(left_s)}; to go on: shoal machine extend {lease.name} --time 8h"

        def work(session: Session) -> str:
            row = session.get_one(Lease, lease.id)
            row.reminded_s = due
            tell(session, session.get_one(Job, row.job_id), "ends_soon", text)
            return session.get_one(User, row.user_id).email

        email = self._ctx.db.write(work)
        self._write_to(email, lease, left_s)
        self._ctx.gateway.tell(lease.id, text)
        self._ctx.live.job_changed(lease.job_id)

    def _write_to(self, email: str, lease: Lease, left_s: float) -> None:
        if email == OWNER_EMAIL:  # who has no address
            return

        def tell_failed(why: str) -> None:
            def work(session: Session) -> None:
                if (job := session.get(Job, lease.job_id)) is not None:
                    tell(session, job, "mail_failed", f"no reminder was sent to {email}: {why}")

            self._ctx.db.write(work)
            self._ctx.live.job_changed(lease.job_id)

        subject = f"Lease '{lease.name}' ends in {duration(left_s)}"
        until = f"{lease.expires_at:%Y-%m-%d %H:%M} UTC"
        self._ctx.mail.send(Letter(email, subject, _LETTER.format(name=lease.name, until=until), tell_failed))


def due_reminder(time_s: int, left_s: float, reminded_s: int | None) -> int | None:
    """The one to give now: the nearest that has come, once. Not one that held when the lease began."""
    come = [r for r in REMINDERS_S if left_s <= r < time_s]
    if not come or (reminded_s is not None and reminded_s <= min(come)):
        return None
    return min(come)
