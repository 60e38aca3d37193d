"""Backups of a server, findings about its data directory, on the wire and in a backup's own file."""

from __future__ import annotations

from typing import Literal

from shoal.core.schema import Utc, View

FORMAT = 1
"""Format of the files in a backup place. A later format that this version cannot read has a higher number."""


class BackupView(View):
    """One backup, as it is described in its place."""

    id: str
    format: int = FORMAT
    made_at: Utc
    instance: str
    """Id of the data directory it was made of."""
    epoch: int = 0
    """Number of times the data directory had been restored from a backup before."""
    version: str
    """Version of Shoal that made it."""
    database_version: str
    """Version of the database's tables."""
    state: str
    """Id of the manifest with the database, the key files and the list of artifacts."""
    database_bytes: int
    artifacts: int
    """Number of artifacts: datasets, checkpoints, sources and other trees of files."""
    unreadable: list[str] = []
    """Ids of manifests that are damaged in the server's own store and are therefore not in the backup."""
    added_bytes: int = 0
    """Bytes that were new to the place; the rest was there from earlier backups."""
    has_chunks: bool
    """False if the artifacts stay in the bucket of the server's store, and only the list of them was saved."""
    has_keys: bool
    """False if secret.key and the other key files were left out."""
    store: str = ""
    """URL of the server's store, if it is not in the data directory."""
    rows: dict[str, int] = {}
    """Number of rows of each table."""
    ledger: str = ""
    """Last entry of the billing ledger, as SEQ:HASH."""
    audit: str | None = None
    """Last entry of the audit log, as SEQ:HASH; empty if it had none, None in backups of versions without an audit log."""


class VerifiedBackup(View):
    """Result of restoring a backup into a temporary place and comparing it."""

    id: str
    ok: bool
    problems: list[str]
    artifacts: int
    database_bytes: int
    seconds: float


class RestoreView(View):
    """Result of restoring a backup into a data directory."""

    id: str
    home: str
    instance: str
    """Id of the new data directory."""
    original: str
    """Id of the data directory the backup was made of."""
    epoch: int
    made_at: Utc
    revoked: int
    """Keys, accounts and invitations that worked in the backup but are revoked in the place's list, or by request."""
    revocations_until: Utc | None
    """Time of the newest backup or revocation in the place. Revocations after it are unknown."""
    artifacts: int
    has_keys: bool


class UpgradeView(View):
    """Result of upgrading a database."""

    before: str
    """Version of its tables before."""
    after: str
    rows: int
    """Rows in all tables."""
    copy_before: str | None
    """File with the database from before; None if there was nothing to change."""
    backup: str | None = None
    """Id of the backup that was made first."""
    seconds: float


class DataCheckView(View):
    """Result of checking the database and the store of a data directory."""

    ok: bool
    problems: list[str]
    tables: int
    rows: int
    ledger_entries: int
    chunks: int
    size: int
    """Bytes of the store that were read."""


FindingState = Literal["ok", "warning", "error"]


class Finding(View):
    """One thing that `shoal server doctor` looked at."""

    name: str
    state: FindingState
    text: str
    fix: str = ""
    """Command or action that solves it; empty if there is nothing to do."""
