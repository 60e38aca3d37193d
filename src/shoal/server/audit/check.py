"""Verification of the whole audit log: every entry, the chain of hashes, its head, and the database pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Select, func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from shoal.core.audit import AuditProblem, AuditVerified
from shoal.core.errors import UsageError
from shoal.server.audit import rules
from shoal.server.context import Context
from shoal.server.models.audit import AuditHead, AuditRow

_BATCH = 1_000
_MOST = 100
"""Most problems listed: one break in the chain may cause many."""


def verify(ctx: Context, head: str | None = None) -> AuditVerified:
    """Verify the audit log. `head`: an earlier head as SEQ:HASH, which must still be part of the chain."""
    wanted = parse_head(head)
    with ctx.db.read() as session:
        return verify_session(session, wanted)


def verify_session(session: Session, wanted: tuple[int, str] | None = None) -> AuditVerified:
    """Verify the audit log of an open database."""
    check = _Check(session)
    check.run(wanted)
    return AuditVerified(
        entries=check.entries,
        whole=not check.problems,
        seq=check.seq,
        head=check.previous,
        problems=check.problems[:_MOST],
    )


def parse_head(head: str | None) -> tuple[int, str] | None:
    """Return number and hash of a head as `shoal audit verify` prints it."""
    if head is None:
        return None
    seq, _, hash_ = head.strip().partition(":")
    if not (seq.isascii() and seq.isdecimal()) or len(hash_) != len(rules.FIRST):
        raise UsageError(f"{head!r} is not a head of the audit log (SEQ:HASH).", hint="shoal audit verify")
    return int(seq), hash_


class _Check:
    def __init__(self, session: Session):
        self._session = session
        self.entries, self.seq, self.previous = 0, 0, rules.FIRST
        self.problems = list[AuditProblem]()

    def run(self, wanted: tuple[int, str] | None) -> None:
        head = self._session.get(AuditHead, 1)
        low, high = self._session.execute(select(func.min(AuditRow.seq), func.max(AuditRow.seq))).one()
        last = max(high or 0, head.seq if head else 0)
        if low is not None and low < 1:
            self._add_problem(low, "it was inserted: the first entry is number 1")
        for seq, entry in self._read(last):
            self._check_entry(seq, entry)
            if wanted is not None and wanted[0] == seq and entry is not None and entry.hash != wanted[1]:
                self._add_problem(seq, "its hash differs from the one you gave")
        self._check_head(head, high or 0)
        if wanted is not None and wanted[0] > last:
            self._add_problem(wanted[0], "it no longer exists, but you gave its hash: the end of the log was cut off")
        self._check_triggers()
        self._check_pages()

    def _read(self, last: int) -> Iterator[tuple[int, AuditRow | None]]:
        """Yield every number up to the last with its entry; None for an entry that is missing or cannot be read."""
        for first in range(1, last + 1, _BATCH):
            numbers = range(first, min(first + _BATCH, last + 1))
            try:
                batch = {e.seq: e for e in self._session.scalars(_entries(first, numbers[-1]))}
            except (DBAPIError, ValueError):
                batch = {seq: entry for seq in numbers if (entry := self._read_one(seq)) is not None}
            yield from ((seq, batch.get(seq)) for seq in numbers)
            self._session.expunge_all()

    def _read_one(self, seq: int) -> AuditRow | None:
        try:
            return self._session.scalars(_entries(seq, seq)).first()
        except (DBAPIError, ValueError):
            return None

    def _check_entry(self, seq: int, entry: AuditRow | None) -> None:
        if entry is None:
            self._add_problem(seq, "it is missing, or cannot be read")
            return
        self.entries += 1
        for fault in rules.faults(entry, seq, self.previous):
            self._add_problem(seq, fault)
        self.seq, self.previous = seq, str(entry.hash)

    def _check_head(self, head: AuditHead | None, last: int) -> None:
        if head is None:
            if last:
                self._add_problem(None, "the row that names the last entry was removed")
            return
        if head.seq < last:
            self._add_problem(head.seq + 1, "it was inserted after the last recorded entry")
        elif head.seq == last and head.hash != self.previous:
            self._add_problem(last, "its hash differs from the one that was noted for the last entry")

    def _check_triggers(self) -> None:
        wanted = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'audit'"
        found = set(self._session.scalars(text(wanted)))
        for name in sorted({"audit_no_update", "audit_no_delete", "audit_no_replace"} - found):
            self._add_problem(None, f"the trigger {name}, which keeps entries from being changed, was removed")

    def _check_pages(self) -> None:
        """Check the database pages: a damaged index may hide entries that are valid themselves."""
        try:
            found = list(self._session.scalars(text("PRAGMA integrity_check(audit)")))
        except DBAPIError as error:
            found = [str(error.orig)]
        for line in found:
            if line != "ok":
                self._add_problem(None, f"the database says: {line}")

    def _add_problem(self, seq: int | None, what: str) -> None:
        if len(self.problems) < _MOST:
            self.problems.append(AuditProblem(seq=seq, what=what))


def _entries(first: int, last: int) -> Select[Any]:
    return select(AuditRow).where(AuditRow.seq.between(first, last)).order_by(AuditRow.seq)
