"""Copies of the database while a server writes to it, and facts about such a copy. Works for tables of any version."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from shoal.core.errors import Corrupt, StorageFull

_MOST_PROBLEMS = 20


def copy_database(source: Path, to: Path) -> None:
    """Copy a database as it is at one moment. Readers and writers of the original do not wait for it.

    SQLite's backup copies all pages in one read transaction, which a WAL database allows beside any number of writes. A copy
    made with `cp` would miss the write-ahead log, or tear.
    """
    try:
        with (
            closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True, timeout=30)) as original,
            closing(sqlite3.connect(to, timeout=30)) as copy,
        ):
            original.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")  # one complete file, without a log beside it
    except sqlite3.OperationalError as error:
        if "full" in str(error).lower():
            raise StorageFull(f"There is not enough space for a copy of the database in {to.parent}.") from error
        raise


def integrity_problems(path: Path) -> list[str]:
    """Return what SQLite finds wrong with a database; empty if it is intact."""
    found = []
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=30)) as db:
            lines = [str(row[0]) for row in db.execute(f"PRAGMA integrity_check({_MOST_PROBLEMS})")]
            found += [f"the database says: {line}" for line in lines if line != "ok"]
            orphans: dict[str, int] = {}
            for table, *_ in db.execute("PRAGMA foreign_key_check"):
                orphans[table] = orphans.get(table, 0) + 1
            found += [f"{count} rows of table {table} refer to a row that is gone" for table, count in orphans.items()]
    except sqlite3.DatabaseError as error:
        found.append(f"the database cannot be read: {error}")
    return found


def version_of(path: Path) -> str | None:
    """Return the version of a database's tables; None if it has none."""
    rows = list(query(path, "SELECT version_num FROM alembic_version"))
    return str(rows[0][0]) if rows else None


def row_counts(path: Path) -> dict[str, int]:
    """Return the number of rows of each table."""
    tables = [
        row[0]
        for row in query(path, "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    ]
    return {name: next(query(path, f'SELECT count(*) FROM "{name}"'))[0] for name in sorted(tables)}  # noqa: S608


def ledger_head(path: Path) -> str:
    """Return the last ledger entry as SEQ:HASH; empty if there is none."""
    rows = list(query(path, "SELECT seq, hash FROM ledger_head"))
    return f"{rows[0][0]}:{rows[0][1]}" if rows else ""


def audit_head(path: Path) -> str:
    """Return the last entry of the audit log as SEQ:HASH; empty if there is none."""
    rows = list(query(path, "SELECT seq, hash FROM audit_head"))
    return f"{rows[0][0]}:{rows[0][1]}" if rows else ""


def fact(path: Path, name: str) -> str | None:
    """Return a value from the server's own facts."""
    rows = list(query(path, "SELECT value FROM server_facts WHERE name = ?", name))
    return str(rows[0][0]) if rows else None


def query(path: Path, sql: str, *values: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a query; none if this version of the database has no such table."""
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=30)) as db:
            yield from db.execute(sql, values).fetchall()
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error) and "no such column" not in str(error):
            raise
    except sqlite3.DatabaseError as error:
        raise Corrupt(f"{path} cannot be read: {error}.") from error
