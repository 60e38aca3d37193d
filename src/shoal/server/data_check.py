"""Check of a whole data directory: pages and references of the database, ledger, audit log, every chunk of the store.

Reads only, beside a running server or without one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from shoal.core.backups import DataCheckView
from shoal.core.errors import NotFound
from shoal.core.settings import Layout, ServerSettings
from shoal.server.artifacts.upkeep import used_manifests
from shoal.server.audit.check import verify_session as verify_audit
from shoal.server.backup import snapshot
from shoal.server.backup.create import open_store
from shoal.server.billing.ledger_check import verify_session
from shoal.server.migrations import HEAD, refuse_newer
from shoal.store.check import check as check_store

_MOST = 20


def check_data(
    layout: Layout, settings: ServerSettings, *, store: bool = True, say: Callable[[str], None] = lambda text: None
) -> DataCheckView:
    """Check the database and, with `store`, every chunk."""
    if not layout.database.exists():
        raise NotFound(f"There is no database at {layout.database}.", hint="shoal server start")
    say("Checking the database …")
    problems = snapshot.integrity_problems(layout.database)
    rows: dict[str, int] = {}
    entries, used = 0, set[str]()
    if not problems:
        version = snapshot.version_of(layout.database)
        refuse_newer(version, None)
        rows = snapshot.row_counts(layout.database)
        if version == HEAD:
            entries, used, found = _read(layout.database)
            problems += found
    chunks = size = 0
    if store:
        say("Reading the whole store …")
        with open_store(layout, settings) as opened:
            report = check_store(opened)
            names = set(opened.list_manifests())
        chunks, size = report.chunks, report.size
        problems += _named("damaged chunk", report.damaged) + _named("missing chunk", report.missing)
        problems += _named("damaged list of files", report.damaged_manifests)
        problems += _named("missing list of files", used - names)
    return DataCheckView(
        ok=not problems,
        problems=problems,
        tables=len(rows),
        rows=sum(rows.values()),
        ledger_entries=entries,
        chunks=chunks,
        size=size,
    )


def _read(database: Path) -> tuple[int, set[str], list[str]]:
    """Return the number of ledger entries, the manifests in use, and problems of the ledger and of the audit log.

    Reads a copy: a long read of the original would keep its write-ahead log from being reused.
    """
    with tempfile.TemporaryDirectory(prefix=".check-", dir=database.parent) as folder:
        copy = Path(folder) / "shoal.db"
        snapshot.copy_database(database, copy)
        engine = create_engine(f"sqlite:///{copy}")
        try:
            with Session(engine) as session:
                ledger = verify_session(session)
                texts = [f"ledger entry {p.seq or '-'}: {p.what}" for p in ledger.problems]
                texts += [f"audit entry {p.seq or '-'}: {p.what}" for p in verify_audit(session).problems]
                return ledger.entries, used_manifests(session), texts
        finally:
            engine.dispose()


def _named(what: str, names: set[str]) -> list[str]:
    shown = [f"{what} {name[:12]}…" for name in sorted(names)[:_MOST]]
    return [*shown, f"and {len(names) - _MOST} more: {what}"] if len(names) > _MOST else shown
