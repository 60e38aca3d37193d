"""The lease clock: ends leases when their time is up and reminds their owners before. One thread, woken by every change.

Why this is safe: the clock keeps nothing in memory. It clears its event before it reads, so a change that is committed after
the read wakes it again. Requests extend and release leases at the same time, so what was read may be old: both writes look at
the row again and do nothing if its end was moved, and ending a lease twice has no effect. Sessions are closed before the row is
written; a crash in between is repaired by the next start, which finds the lease still expired. A reminder is marked as sent
before it is mailed: a crash may lose one, but never sends it twice.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.background_loops import Loop, run_all
from shoal.core.durations import duration
from shoal.core.people import OWNER_EMAIL
from shoal.core.schema import utcnow
from shoal.server.context import Context
from shoal.server.jobs.events import record_event
from shoal.server.leases import lease_rows
from shoal.server.mail import Letter
from shoal.server.models.jobs import Job
from shoal.server.models.leases import Lease
from shoal.server.models.users import User

REMINDERS_S = (86_400, 3_600, 600)
NOTICE_S = float(REMINDERS_S[1])
"""Remaining seconds below which every console page shows the lease's owner a notice."""
OVER = "its time ran out"
_LONGEST_WAIT_S = 30.0
"""Longest sleep of the loop in seconds: the wall clock may be changed meanwhile."""
_REMINDER_MAIL = """\
Your lease '{name}' ends at {until}. All sessions are then closed and running processes are stopped; its files
are kept as a snapshot.

To keep the lease longer, press Extend in the console, or run:

  shoal machine extend {name} --time 8h
"""


class LeaseClock:
    """Background loop that ends expired leases and sends the reminders in `REMINDERS_S`."""

    def __init__(self, ctx: Context):
        self._ctx = ctx
        self._loop = Loop("leases", self._step, wait=ctx.live.leases.wait, is_closing=lambda: ctx.live.closing)

    def start(self) -> None:
        self._ctx.loops.start(self._loop)

    def stop(self) -> None:
        """Stop the loop; call it after `live.close()`, which wakes it."""
        self._loop.stop()

    def _step(self) -> float:
        self._ctx.live.leases.clear()
        return self.handle_due(utcnow())

    def handle_due(self, now: datetime) -> float:
        """End expired leases and send due reminders; return the seconds until the next one is due."""
        running = select(Lease).where(Lease.ended_at.is_(None), Lease.expires_at.is_not(None))
        with self._ctx.db.read() as session:
            leases = list(session.scalars(running))
        # Every lease is handled even if another fails: a reminder that cannot be stored must not keep others from ending.
        run_all([*(partial(self._handle, lease, now) for lease in leases), partial(lease_rows.destroy_keys, self._ctx)])
        moments = [now + timedelta(seconds=_LONGEST_WAIT_S)]
        for expires in (lease.expires_at for lease in leases if lease.expires_at and lease.expires_at > now):
            moments += [expires, *(m for r in REMINDERS_S if (m := expires - timedelta(seconds=r)) > now)]
        return max(0.0, (min(moments) - utcnow()).total_seconds())

    def _handle(self, lease: Lease, now: datetime) -> None:
        left_s = ((lease.expires_at or now) - now).total_seconds()
        if left_s <= 0:
            self._end(lease, now)
        elif (due := due_reminder(lease.time_s, left_s, lease.reminded_s)) is not None:
            self._remind(lease, due, left_s)

    def _end(self, lease: Lease, now: datetime) -> None:
        def work(session: Session) -> None:
            row = session.get_one(Lease, lease.id)
            if row.expires_at is not None and row.expires_at <= now:  # else it was extended after it was read
                lease_rows.end(session, row, OVER)

        # Sessions are closed first: even if the database write fails, nobody stays connected after the end.
        self._ctx.gateway.drop(lease.id)
        self._ctx.db.write(work, essential=True)
        self._ctx.live.job_changed(lease.job_id, schedule=True)

    def _remind(self, lease: Lease, due: int, left_s: float) -> None:
        text = f"lease '{lease.name}' ends in {duration(left_s)}; to extend it: shoal machine extend {lease.name} --time 8h"

        def work(session: Session) -> str | None:
            row = session.get_one(Lease, lease.id)
            if row.expires_at != lease.expires_at:  # it was extended after it was read
                return None
            row.reminded_s = due
            record_event(session, session.get_one(Job, row.job_id), "ends_soon", text)
            return session.get_one(User, row.user_id).email

        email = self._ctx.db.write(work)
        if email is None:
            return
        self._send_reminder(email, lease, left_s)
        self._ctx.gateway.notify(lease.id, text)
        self._ctx.live.job_changed(lease.job_id)

    def _send_reminder(self, email: str, lease: Lease, left_s: float) -> None:
        if email == OWNER_EMAIL:  # a placeholder, not a real address
            return

        def record_failure(why: str) -> None:
            def work(session: Session) -> None:
                if (job := session.get(Job, lease.job_id)) is not None:
                    record_event(session, job, "mail_failed", f"no reminder was sent to {email}: {why}")

            self._ctx.db.write(work)
            self._ctx.live.job_changed(lease.job_id)

        subject = f"Lease '{lease.name}' ends in {duration(left_s)}"
        until = f"{lease.expires_at:%Y-%m-%d %H:%M} UTC"
        self._ctx.mail.send(Letter(email, subject, _REMINDER_MAIL.format(name=lease.name, until=until), record_failure))


def due_reminder(time_s: int, left_s: float, reminded_s: int | None) -> int | None:
    """Return the reminder (seconds before the end) to send now, or None.

    Each is sent once, and only the latest one that is due. Reminders longer than the whole lease are skipped.
    """
    due = [r for r in REMINDERS_S if left_s <= r < time_s]
    if not due or (reminded_s is not None and reminded_s <= min(due)):
        return None
    return min(due)
