"""Loops that look for what rules match, and that send what is due.

Nothing is told twice, and nothing is lost: notices and deliveries are rows with unique keys, written in one transaction when
something matches. A delivery is sent after that, and its row is changed when the receiver has answered, so a crash in between
sends it again, with the same `Shoal-Delivery`. Jobs that ended while the server was down are looked at when it starts.

Why this is safe with two threads: only the thread of `evaluate` uses `_changed`, `_told`, `_is_first` and `_slow_at`, and
changes reach it through a `Listener`, which has its own lock. It forgets changed jobs only at the end of a pass, so a pass that
fails is repeated for the same jobs. The thread of `send` has no state: it reads which rows are due. Both meet in the database
only, and the unique keys make a repeated pass harmless. `_mail_failed` runs in the mail thread, after the last of several
tries, long after `send` has marked the row as sent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import httpx
from sqlalchemy import select
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.orm import Session

from shoal.core.background_loops import Loop
from shoal.core.errors import ShoalError
from shoal.core.ids import new_id
from shoal.core.schema import utcnow
from shoal.server.context import Context
from shoal.server.mail import Letter
from shoal.server.models.jobs import Job
from shoal.server.models.notices import NoticeDelivery, NoticeRow, NoticeRule
from shoal.server.models.users import User
from shoal.server.models.workspaces import Member
from shoal.server.notices import match, payloads, rules
from shoal.server.notices.match import Match
from shoal.server.ssrf_guard import Guard, PinnedTransport, Stopped

logger = logging.getLogger(__name__)

PAUSES_S = (10.0, 60.0, 600.0, 3600.0)
"""Seconds before each further try of a delivery."""
_EVERY_S, _SLOWLY_S, _STALL_S = 2.0, 15.0, 15.0
_AT_ONCE, _LOOK_BACK, _MOST_TOLD = 20, timedelta(days=1), 100_000


class NoticeLoop:
    """Two threads: one looks at what changed, one sends."""

    def __init__(self, ctx: Context, base_url: str, pauses_s: Sequence[float] = PAUSES_S):
        self._ctx, self._base_url, self._pauses_s = ctx, base_url, pauses_s
        self._heard = ctx.live.listen()
        self._slow_at = float("-inf")
        self._changed: set[str] = set()
        """Jobs that were not looked at yet: of a pass that failed."""
        self._is_first = True
        """True until a pass has looked at everything that is active or ended lately."""
        self._told: set[tuple[str, str]] = set()
        """Rule and key of what was written already, so that it is not written again every time its job changes."""
        self._looking = Loop("notices", self.evaluate, is_closing=lambda: ctx.live.closing, every_s=_EVERY_S)
        self._sending = Loop("deliveries", self.send, is_closing=lambda: ctx.live.closing, every_s=_EVERY_S)

    def start(self) -> None:
        self._ctx.loops.start(self._looking)
        self._ctx.loops.start(self._sending)

    def stop(self) -> None:
        self._looking.stop(5.0)
        self._sending.stop(20.0)

    def evaluate(self) -> None:
        """Write the notices and deliveries of everything that rules match now."""
        self._changed |= self._heard.pop_changed()
        is_slow = self._is_first or time.monotonic() - self._slow_at >= _SLOWLY_S
        if not self._changed and not is_slow:
            return
        now = utcnow()
        with self._ctx.db.read() as session:
            known = list(session.scalars(select(NoticeRule)))
            found: list[Match] = []
            if known:
                ids = set(self._changed)
                if self._is_first:
                    recent = Job.ended_at.is_(None) | (Job.ended_at >= now - _LOOK_BACK)
                    ids |= set(session.scalars(select(Job.id).where(recent)))
                found += match.jobs(session, known, ids)
                if is_slow:
                    found += match.leases(session, [r for r in known if r.kind == "lease_ending"], now)
                    found += match.devices(session, [r for r in known if r.kind == "device_drained"])
            session.expunge_all()
        fresh = [one for one in found if (one.rule.id, one.key) not in self._told]
        if fresh:
            self._ctx.db.write(partial(_record, fresh, now))
            self._sending.wake()
        if len(self._told) > _MOST_TOLD:
            self._told.clear()  # they are in the database, too
        self._told |= {(one.rule.id, one.key) for one in fresh}
        self._changed, self._is_first = set(), False
        if is_slow:
            self._slow_at = time.monotonic()

    def send(self) -> float | None:
        """Send the deliveries that are due; those that fail are tried again later."""
        with self._ctx.db.read() as session:
            due = (
                select(NoticeDelivery.id)
                .where(NoticeDelivery.state == "waiting", NoticeDelivery.next_at <= utcnow())
                .order_by(NoticeDelivery.next_at)
                .limit(_AT_ONCE)
            )
            ids = list(session.scalars(due))
        for delivery_id in ids:
            if self._ctx.live.closing:
                return None
            self._send_one(delivery_id)
        return 0.0 if len(ids) == _AT_ONCE else None

    def _send_one(self, delivery_id: int) -> None:
        with self._ctx.db.read() as session:
            row = session.get(NoticeDelivery, delivery_id)
            if row is None:
                return
            session.expunge(row)
        error = self._post(row)

        def work(session: Session) -> None:
            found = session.get(NoticeDelivery, delivery_id)
            if found is None:
                return
            found.tries += 1
            found.error = error
            if error is None:
                found.state, found.sent_at = "sent", utcnow()
            elif found.tries > len(self._pauses_s):
                found.state = "failed"
            else:
                found.next_at = utcnow() + timedelta(seconds=self._pauses_s[found.tries - 1])

        self._ctx.db.write(work)

    def _post(self, row: NoticeDelivery) -> str | None:
        """Send one delivery; return why it failed, or None."""
        if row.type == "email":
            self._ctx.mail.send(
                Letter(row.to, str(row.notice["title"]), self._mail_text(row), partial(self._mail_failed, row.id))
            )
            return None
        secret = rules.secret(self._ctx, row.rule_id)
        body, headers = payloads.request(
            row.type, row.notice, self._base_url, secret, f"dlv_{row.id}", int(time.time())
        )
        guard = Guard(private=self._ctx.private)
        try:
            url = guard.parse(row.to)
            transport = PinnedTransport(guard, stall_s=_STALL_S, stop=lambda: self._ctx.live.closing)
            with httpx.Client(transport=transport, follow_redirects=False) as client:
                status = client.post(url, content=body, headers=headers).status_code
        except Stopped:
            return "The server was stopping."
        except ShoalError as problem:
            return problem.message
        except httpx.HTTPError as problem:
            return f"{type(problem).__name__}: {problem}"[:300]
        return None if 200 <= status < 300 else f"The receiver answered HTTP {status}."

    def _mail_text(self, row: NoticeDelivery) -> str:
        return f"{row.notice['title']}\n\n{row.notice['text']}\n\n{self._base_url.rstrip('/')}{row.notice['path']}\n"

    def _mail_failed(self, delivery_id: int, why: str) -> None:
        def work(session: Session) -> None:
            row = session.get(NoticeDelivery, delivery_id)
            if row is not None:
                row.state, row.error = "failed", why

        self._ctx.db.write(work)


def test(ctx: Context, rule: NoticeRule) -> None:
    """Queue a test delivery for every channel of a rule."""
    found = Match(
        rule,
        f"test {new_id('test')}",
        "Test of a notification",
        "This rule works.",
        f"/w/{rule.workspace_id}/notifications",
    )
    ctx.db.write(partial(_record, [found], utcnow()))


def _record(found: Sequence[Match], now: datetime, session: Session) -> None:
    """Write notices and deliveries; those that are there already stay as they are."""
    for one in found:
        people = _people(session, one.rule)
        notice = _notice(one, now)
        for user_id in people:
            session.execute(
                insert(NoticeRow)
                .values(
                    user_id=user_id, workspace_id=one.rule.workspace_id, key=one.key, kind=one.rule.kind, title=one.title,
                    text=one.text, path=one.path, at=now,
                )
                .on_conflict_do_nothing()
            )  # fmt: skip
        for channel in one.rule.channels:
            targets = [channel["to"]] if channel["to"] else list(people.values())
            for target in targets:
                session.execute(
                    insert(NoticeDelivery)
                    .values(
                        rule_id=one.rule.id, key=one.key, type=channel["type"], to=target, notice=notice, state="waiting",
                        tries=0, next_at=now, created_at=now,
                    )
                    .on_conflict_do_nothing()
                )  # fmt: skip


def _people(session: Session, rule: NoticeRule) -> dict[str, str]:
    """Return the people whom a rule tells, with their addresses: those who are members of its workspace now."""
    query = (
        select(User.id, User.email)
        .join(Member, Member.user_id == User.id)
        .where(Member.workspace_id == rule.workspace_id, User.disabled_at.is_(None))
    )
    if not rule.shared:
        query = query.where(User.id == rule.user_id)
    return {row.id: row.email for row in session.execute(query)}


def _notice(one: Match, now: datetime) -> dict[str, Any]:
    job = dict(zip(("id", "name", "status"), one.job, strict=True)) if one.job else None
    return {
        "kind": one.rule.kind, "title": one.title, "text": one.text, "path": one.path, "job": job,
        "workspace": one.rule.workspace_id, "at": now.isoformat(),
    }  # fmt: skip
