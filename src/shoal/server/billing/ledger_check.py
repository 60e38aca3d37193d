"""Verification of the whole ledger: every entry, the chain of hashes, its head, and the database pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Select, func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from shoal.core.billing import LedgerProblem, VerifyView
from shoal.core.errors import UsageError
from shoal.server.billing import ledger_rules as rules
from shoal.server.context import Context
from shoal.server.models.ledger import LedgerEntry, LedgerHead

_BATCH = 1_000
_MOST = 100
"""Most problems listed: one break in the chain causes many."""


def verify(ctx: Context, workspace_id: str | None, head: str | None = None) -> VerifyView:
    """Verify the ledger. Lists the problems of one workspace, or all.

    `head`: an earlier head as SEQ:HASH, which must still be part of the chain.
    """
    wanted = _parse_head(head)
    with ctx.db.read() as session:
        return verify_session(session, workspace_id, wanted)


def verify_session(
    session: Session, workspace_id: str | None = None, wanted: tuple[int, str] | None = None
) -> VerifyView:
    """Verify the ledger of an open database."""
    check = _Check(session, workspace_id)
    check.run(wanted)
    return VerifyView(
        entries=check.entries, whole=check.whole, seq=check.seq, head=check.previous, problems=check.problems
    )


def _parse_head(head: str | None) -> tuple[int, str] | None:
    if head is None:
        return None
    seq, _, hash_ = head.partition(":")
    if not seq.isdecimal() or len(hash_) != 64:
        raise UsageError(f"{head!r} is not a head of the ledger (SEQ:HASH).", hint="shoal billing verify")
    return int(seq), hash_


class _Check:
    def __init__(self, session: Session, workspace_id: str | None):
        self._session, self._workspace_id = session, workspace_id
        self.entries, self.seq, self.previous = 0, 0, rules.FIRST
        self.whole, self.problems = True, list[LedgerProblem]()
        self._ends: dict[tuple[str, int], int] = {}

    def run(self, wanted: tuple[int, str] | None) -> None:
        head = self._session.get(LedgerHead, 1)
        last = max(self._session.scalar(select(func.max(LedgerEntry.seq))) or 0, head.seq if head else 0)
        for seq, entry in self._read(last):
            self._check_entry(seq, entry)
            if wanted is not None and wanted[0] == seq and (entry is None or entry.hash != wanted[1]):
                self._add_problem(seq, entry, "its hash differs from the one you gave")
        if head is not None and (head.seq, head.hash) != (self.seq, self.previous):
            self._add_problem(None, None, f"the last entry should be number {head.seq}, with another hash")
        if wanted is not None and wanted[0] > last:
            self._add_problem(None, None, f"entry {wanted[0]}, whose hash you gave, no longer exists")
        self._check_pages()

    def _read(self, last: int) -> Iterator[tuple[int, LedgerEntry | None]]:
        """Yield every number up to the last with its entry; None for an entry that is missing or cannot be read."""
        for first in range(1, last + 1, _BATCH):
            numbers = range(first, min(first + _BATCH, last + 1))
            try:
                batch = {e.seq: e for e in self._session.scalars(_entries(first, numbers[-1]))}
            except (DBAPIError, ValueError):
                batch = {seq: entry for seq in numbers if (entry := self._read_one(seq)) is not None}
            yield from ((seq, batch.get(seq)) for seq in numbers)
            self._session.expunge_all()

    def _read_one(self, seq: int) -> LedgerEntry | None:
        try:
            return self._session.scalars(_entries(seq, seq)).first()
        except (DBAPIError, ValueError):
            return None

    def _check_entry(self, seq: int, entry: LedgerEntry | None) -> None:
        if entry is None:
            self._add_problem(seq, None, "it is missing, or cannot be read")
            return
        self.entries += 1
        found = list(rules.faults(entry, seq, self.previous))
        self.seq, self.previous = seq, str(entry.hash)
        key = (entry.attempt_id, entry.node)
        if not found and entry.start_ms < self._ends.get(key, entry.start_ms):
            found = ["it overlaps an earlier entry of the same node"]
        if not found:  # the fields of a faulty entry may have any type
            self._ends[key] = entry.end_ms
        for fault in found:
            self._add_problem(seq, entry, fault)

    def _check_pages(self) -> None:
        """Check the database pages: a damaged index may hide entries that are valid themselves."""
        try:
            found = list(self._session.scalars(text("PRAGMA integrity_check(ledger)")))
        except DBAPIError as error:
            found = [str(error.orig)]
        for line in found:
            if line != "ok":
                self._add_problem(None, None, f"the database says: {line}")

    def _add_problem(self, seq: int | None, entry: LedgerEntry | None, what: str) -> None:
        self.whole = False
        mine = self._workspace_id is None or (entry is not None and entry.workspace_id == self._workspace_id)
        if mine and len(self.problems) < _MOST:
            self.problems.append(LedgerProblem(seq=seq, job=str(entry.job) if entry else None, what=what))


def _entries(first: int, last: int) -> Select[Any]:
    return select(LedgerEntry).where(LedgerEntry.seq.between(first, last)).order_by(LedgerEntry.seq)
