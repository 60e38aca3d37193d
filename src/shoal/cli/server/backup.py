"""`shoal server backup`, `restore`, `upgrade`, `downgrade`, `check` and `doctor`: the data directory on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cyclopts import App

from shoal.cli.shared.diagnosis import print_diagnosis
from shoal.cli.shared.format import plural, size
from shoal.cli.shared.output import Column, out
from shoal.core.errors import UsageError
from shoal.core.settings import Layout, ServerSettings

if TYPE_CHECKING:
    from shoal.core.backups import BackupView, RestoreView, UpgradeView
    from shoal.server.backup.place import Place

app = App(name="backup", help="Make, list and verify backups of the server on this machine.")


@app.command
def create(
    place: str | None = None,
    *,
    keep: int | None = None,
    chunks: bool = False,
    no_chunks: bool = False,
    no_keys: bool = False,
) -> int:
    """Make a backup of the server on this machine, while it runs or not.

    A backup holds the database, the key files, the settings and all datasets,
    checkpoints and sources. Only what is new since the last backup in the
    same place is written. Keep the place private: with the key files, secrets
    can be read from it.

    For example:

      shoal server backup create /mnt/backups/shoal
      shoal server backup create s3://bucket/shoal --keep 14
      shoal server backup create --no-keys /mnt/shared/shoal

    Parameters
    ----------
    place
        Folder or s3:// URL (keys from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; default: the setting backup_to).
    keep
        Keep this many backups of this server and remove older ones (default: keep all).
    chunks
        Copy datasets, checkpoints and sources even if the server stores them in a bucket.
    no_chunks
        Save only the list of datasets, checkpoints and sources.
    no_keys
        Leave out secret.key and the other key files. Restored secrets must then be set again.
    """
    if chunks and no_chunks:
        raise UsageError("--chunks and --no-chunks exclude each other.")
    if keep is not None and keep < 1:
        raise UsageError(f"--keep {keep}: keep at least one backup.")
    layout, settings = _data()
    with _open(place, settings) as opened:
        from shoal.server.backup.create import create

        wanted = True if chunks else False if no_chunks else None
        made = create(layout, settings, opened, chunks=wanted, keys=not no_keys, say=out.stick)
        out.stick("")
        removed = opened.prune(made.instance, keep) if keep is not None else []
    out.show(made, lambda: _print_made(made, removed))
    return 1 if made.unreadable else 0


@app.command(name="list")
def list_(place: str | None = None) -> None:
    """List the backups in a place, newest first.

    For example:

      shoal server backup list /mnt/backups/shoal
      shoal server backup list --json

    Parameters
    ----------
    place
        Folder or s3:// URL (default: the setting backup_to).
    """
    with _open(place, _data()[1]) as opened:
        found = opened.backups()
    columns = [
        Column("BACKUP", lambda b: b.id),
        Column("MADE", lambda b: b.made_at),
        Column("DATABASE", lambda b: size(b.database_bytes)),
        Column("ARTIFACTS", lambda b: b.artifacts),
        Column("NEW", lambda b: size(b.added_bytes)),
        Column("VERSION", lambda b: b.version),
        Column("INSTANCE", lambda b: b.instance),
    ]
    out.show(
        found,
        lambda: out.table(
            found, columns, empty=f"There are no backups here yet. Create one: {out.prog} server backup create"
        ),
    )


@app.command
def verify(place: str | None = None, *, id: str | None = None) -> int:
    """Restore a backup into a temporary folder and compare it; exit 1 if anything differs.

    Compares the rows of every table, the billing ledger, the key file and
    all artifacts that are in use. Every chunk is read and verified.

    For example:

      shoal server backup verify /mnt/backups/shoal
      shoal server backup verify --id bak_01kaa00000000000000000000a

    Parameters
    ----------
    place
        Folder or s3:// URL (default: the setting backup_to).
    id
        Verify this backup (default: the newest).
    """
    with _open(place, _data()[1]) as opened:
        from shoal.server.backup.restore import verify

        found = verify(opened, backup_id=id, say=out.stick)
        out.stick("")

    def show() -> None:
        for problem in found.problems:
            out.line(problem)
        if found.ok:
            what = f"database {size(found.database_bytes)}, {plural(found.artifacts, 'artifact')}"
            out.info(f"Backup {found.id} is complete: {what}, compared in {found.seconds:.1f} s.")
        else:
            out.info(f"Backup {found.id} cannot be relied on. Make another one: {out.prog} server backup create")

    out.show(found, show)
    return 0 if found.ok else 1


def restore(place: str, *, id: str | None = None, revoke_keys: bool = False) -> None:
    """Restore a backup into a new data directory (SHOAL_HOME), also on another machine.

    The result is a new instance: agents and rented machines of the original
    are turned away, jobs that ran start again from their newest checkpoint,
    everyone signs in again, and all that was revoked before the place's
    newest backup stays revoked. Machines of the pool must be added again.

    For example:

      SHOAL_HOME=/srv/shoal-new shoal server restore /mnt/backups/shoal
      SHOAL_HOME=/srv/shoal-new shoal server restore /mnt/backups/shoal --revoke-keys

    Parameters
    ----------
    place
        Folder or s3:// URL with the backups.
    id
        Restore this backup (default: the newest).
    revoke_keys
        Revoke all API keys, in case some were revoked after the newest backup in the place.
    """
    layout = Layout()
    with _open(place, ServerSettings()) as opened:
        from shoal.server.backup.restore import restore

        found = restore(opened, layout, backup_id=id, revoke_keys=revoke_keys, say=out.stick)
        out.stick("")
    out.show(found, lambda: _print_restored(found, revoke_keys))


def upgrade(*, backup: str | None = None) -> None:
    """Upgrade the database of a stopped server to this version of Shoal, and examine it before and after.

    Starting the server upgrades too; this command does it without starting,
    and can make a backup first. In both cases the database is copied before
    its tables change, and `shoal server downgrade` puts the copy back. A
    damaged database is refused and left as it is.

    For example:

      shoal server stop
      shoal server upgrade
      shoal server upgrade --backup /mnt/backups/shoal

    Parameters
    ----------
    backup
        Folder or s3:// URL in which to make a complete backup first (default: backup_to, if it is set).
    """
    layout, settings = _data()
    from shoal.server.backup.create import create as make
    from shoal.server.backup.upgrades import pending, upgrade_now

    made = None
    if pending(layout) and (place := backup or settings.backup_to):
        with _open(place, settings) as opened:
            made = make(layout, settings, opened, keys=settings.backup_keys, say=out.stick)
    found = upgrade_now(layout, doing=out.stick).model_copy(update={"backup": made.id if made else None})
    out.stick("")
    out.show(found, lambda: _print_upgraded(found))


def downgrade(*, yes: bool = False) -> None:
    """Put back the copy of the database from before the last upgrade.

    Everything written since the upgrade is lost, except that revoked keys
    stay revoked. The present database is moved aside. Then install the older
    version of Shoal.

    For example:

      shoal server stop
      shoal server downgrade --yes

    Parameters
    ----------
    yes
        Confirm that what was written since the upgrade may be lost.
    """
    if not yes:
        raise UsageError(
            "Everything written since the upgrade would be lost.", hint=f"{out.prog} server downgrade --yes"
        )
    _check_extra()
    from shoal.server.backup.upgrades import downgrade

    copy, aside = downgrade(Layout())

    def show() -> None:
        out.info(f"The database is the one of {copy.name} again. The other one is kept: {aside}")
        out.info("Install the older version of Shoal before you start the server: this one would upgrade it again.")

    out.show({"restored": str(copy), "kept": str(aside)}, show)


def check(*, no_store: bool = False) -> int:
    """Check the whole data directory: database, ledger, audit log and every chunk; exit 1 if anything is damaged.

    Reads only, also while the server runs. Damaged chunks are repaired with
    `shoal store check --quarantine` and another push of the same files.

    For example:

      shoal server check
      shoal server check --no-store

    Parameters
    ----------
    no_store
        Check the database only: reading all chunks of a large store takes hours.
    """
    layout, settings = _data()
    from shoal.server.data_check import check_data

    found = check_data(layout, settings, store=not no_store, say=out.stick)
    out.stick("")

    def show() -> None:
        for problem in found.problems:
            out.line(problem)
        rows = f"{plural(found.rows, 'row')} ({found.ledger_entries} of the ledger)"
        chunks = f", {plural(found.chunks, 'chunk')} ({size(found.size)})" if not no_store else ""
        out.info(
            f"{'No damage found' if found.ok else plural(len(found.problems), 'problem')}: {rows}{chunks} checked."
        )
        if not found.ok:
            out.info(f"Damaged chunks: {out.prog} store check. A damaged database: {out.prog} server restore PLACE")

    out.show(found, show)
    return 0 if found.ok else 1


def doctor() -> int:
    """Examine the server on this machine: settings, loops, database, keys, disk, clock, backups, versions.

    Each problem is shown with what solves it. Exits 1 if there is an error,
    0 if everything is fine or there are only warnings.

    For example:

      shoal server doctor
      shoal server doctor --json
    """
    _check_extra()
    from shoal.client.local import health_of, own_record
    from shoal.server.doctor import examine

    layout = Layout()
    record = own_record(layout)
    found = examine(layout, (health_of(record.url) if record else None) or {})
    out.show(found, lambda: print_diagnosis(found))
    return 1 if any(f.state == "error" for f in found) else 0


def _data() -> tuple[Layout, ServerSettings]:
    _check_extra()
    layout = Layout()
    return layout, ServerSettings.load(layout)


def _check_extra() -> None:
    from shoal.client.local import check_extra

    check_extra()


def _open(place: str | None, settings: ServerSettings) -> Place:
    _check_extra()
    from shoal.server.backup.place import Place

    if not (url := place or settings.backup_to):
        raise UsageError(
            "Name the place for backups: a folder or an s3:// URL.",
            hint=f"{out.prog} server backup create /mnt/backups/shoal; or set backup_to in settings.toml",
        )
    return Place(url)


def _print_made(made: BackupView, removed: list[str]) -> None:
    out.line(made.id)
    what = f"database {size(made.database_bytes)}, {plural(made.artifacts, 'artifact')}"
    out.info(f"Made backup {made.id}: {what}; {size(made.added_bytes)} were new.")
    if not made.has_chunks:
        out.info(f"Datasets, checkpoints and sources stay in {made.store}; --chunks copies them too.")
    if made.unreadable:
        out.warn(f"{plural(len(made.unreadable), 'artifact')} could not be read; find them: {out.prog} store check")
    if removed:
        out.info(f"Removed {plural(len(removed), 'older backup')}.")


def _print_upgraded(found: UpgradeView) -> None:
    if found.copy_before is None:
        out.info(f"The database has tables of version {found.after} already and is intact.")
    else:
        out.info(
            f"The tables were upgraded from version {found.before} to {found.after} in {found.seconds:.1f} s; all is intact."
        )
        out.info(f"The database from before: {found.copy_before}. To go back to it: {out.prog} server downgrade --yes")
    if found.backup:
        out.info(f"Backup {found.backup} was made first.")
    out.info(f"Start the server: {out.prog} server start")


def _print_restored(found: RestoreView, revoked_all: bool) -> None:
    out.line(found.home)
    out.info(
        f"Restored backup {found.id} of {found.made_at:%Y-%m-%d %H:%M} UTC: {plural(found.artifacts, 'artifact')}."
    )
    if found.revoked:
        out.info(f"Revoked keys, accounts and invitations: {found.revoked}.")
    if not revoked_all and found.revocations_until is not None:
        out.info(
            f"Keys that were revoked after {found.revocations_until:%Y-%m-%d %H:%M} UTC would work again; "
            "if there may be any, restore with --revoke-keys."
        )
    if not found.has_keys:
        out.warn("The backup has no key files. Put secret.key back, or start with --new-secret-key.")
    out.info(f"Start it: SHOAL_HOME={found.home} {out.prog} server start")
