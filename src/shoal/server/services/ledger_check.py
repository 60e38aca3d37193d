"""Reading the whole ledger again: every entry, the chain through them, its head, and the pages they are stored on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Select, func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from shoal.core.billing import LedgerProblem, VerifyView
from shoal.core.errors import UsageError
from shoal.server.context import Context
from shoal.server.models.ledger import LedgerEntry, LedgerHead
from shoal.server.services import ledger_rules as rules

_BATCH = 1_000
_MOST = 100
"""Problems told of: where a chain is broken, one leads to another."""


def verify(ctx: Context, workspace_id: str | None, head: str | None = None) -> VerifyView:
    """Of the problems, those of one workspace, or all. `head` is one told earlier, as SEQ:HASH, that must still stand."""
    wanted = _parse_head(head)
    with ctx.db.read() as session:
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
        raise UsageError(f"{head!r} is not a head of the ledger.", hint="shoal billing verify")
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
            self._look(seq, entry)
            if wanted is not None and wanted[0] == seq and (entry is None or entry.hash != wanted[1]):
                self._tell(seq, entry, "it is not the one whose hash was noted")
        if head is not None and (head.seq, head.hash) != (self.seq, self.previous):
            self._tell(None, None, f"the last entry was number {head.seq}, and its hash another one")
        if wanted is not None and wanted[0] > last:
            self._tell(None, None, f"entry {wanted[0]}, whose hash was noted, is not there any more")
        self._look_at_pages()

    def _read(self, last: int) -> Iterator[tuple[int, LedgerEntry | None]]:
        """Every number up to the last, with its entry; None for one that is not there or cannot be read."""
        for first in range(1, last + 1, _BATCH):
            numbers = range(first, min(first + _BATCH, last + 1))
            try:
                batch = {e.seq: e for e in self._session.scalars(_those(first, numbers[-1]))}
            except (DBAPIError, ValueError):
                batch = {seq: entry for seq in numbers if (entry := self._read_one(seq)) is not None}
            yield from ((seq, batch.get(seq)) for seq in numbers)
            self._session.expunge_all()

    def _read_one(self, seq: int) -> LedgerEntry | None:
        try:
            return self._session.scalars(_those(seq, seq)).first()
        except (DBAPIError, ValueError):
            return None

    def _look(self, seq: int, entry: LedgerEntry | None) -> None:
        if entry is None:
            self._tell(seq, None, "it is missing, or cannot be read")
            return
        self.entries += 1
        found = list(rules.faults(entry, seq, self.previous))
        self.seq, self.previous = seq, str(entry.hash)
        key = (entry.attempt_id, entry.node)
        if not found and entry.start_ms < self._ends.get(key, entry.start_ms):
            found = ["it overlaps an earlier entry of the same node"]
        if not found:  # else its fields may be of any kind
            self._ends[key] = entry.end_ms
        for fault in found:
            self._tell(seq, entry, fault)

    def _look_at_pages(self) -> None:
        """A damaged index may hide entries that are sound in themselves."""
        try:
            found = list(self._session.scalars(text("PRAGMA integrity_check(ledger)")))
        except DBAPIError as error:
            found = [str(error.orig)]
        for line in found:
            if line != "ok":
                self._tell(None, None, f"the database says: {line}")

    def _tell(self, seq: int | None, entry: LedgerEntry | None, what: str) -> None:
        self.whole = False
        mine = self._workspace_id is None or (entry is not None and entry.workspace_id == self._workspace_id)
        if mine and len(self.problems) < _MOST:
            self.problems.append(LedgerProblem(seq=seq, job=str(entry.job) if entry else None, what=what))


def _those(first: int, last: int) -> Select[Any]:
    return select(LedgerEntry).where(LedgerEntry.seq.between(first, last)).order_by(LedgerEntry.seq)
