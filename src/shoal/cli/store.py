"""`shoal store`: check and clean up the server's store. Admins only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cyclopts import App

from shoal.cli.shared.format import plural, size
from shoal.cli.shared.output import Column, out
from shoal.cli.shared.parse import parse_duration
from shoal.cli.shared.session import connect

if TYPE_CHECKING:
    from shoal.core.artifacts import CheckView, GcView

app = App(name="store")


@app.command
def check(*, quarantine: bool = False) -> int:
    """Read and verify every byte of the store; exit 1 if anything is damaged.

    Lists the datasets, checkpoints and sources that are damaged. Jobs no
    longer resume from damaged checkpoints.

    For example:

      shoal store check
      shoal store check --quarantine

    Parameters
    ----------
    quarantine
        Move damaged chunks aside, so that pushing the same files again repairs them.
    """
    with connect() as client:
        out.stick("Reading the whole store …")
        found = client.upkeep.check(quarantine=quarantine)
        out.stick("")
    out.show(found, lambda: _print_check(found, quarantine))
    return 1 if found.damaged_chunks or found.missing_chunks or found.hurt else 0


@app.command
def gc(*, grace: str = "1d", dry_run: bool = False) -> None:
    """Delete data from the store that is no longer used.

    For example:

      shoal store gc
      shoal store gc --dry-run
      shoal store gc --grace 1h

    Parameters
    ----------
    grace
        Keep unused data that is younger than this, as a running upload may need it (default 1d).
    dry_run
        Only show what would be deleted.
    """
    grace_s = 0.0 if grace.strip() in ("0", "0s") else parse_duration(grace, "--grace")
    with connect() as client:
        found = client.upkeep.gc(grace_s=grace_s, dry_run=dry_run)
    out.show(found, lambda: _print_gc(found, dry_run))


@app.command
def usage() -> None:
    """Show the size of the store, and how much deduplication and compression save.

    For example:

      shoal store usage
      shoal store usage --json
    """
    with connect() as client:
        found = client.upkeep.usage()
    saved = f" ({found.logical / found.size:.1f} × what is on disk)" if found.size and found.logical else ""
    out.show(
        found,
        lambda: out.fields(
            [
                ("On disk", size(found.size)),
                ("Artifacts", f"{found.manifests}, {size(found.logical)} in total{saved}"),
                ("Chunks", f"{found.chunks} in {plural(found.packs, 'pack')} and single files"),
                ("To be deleted", size(found.trash) if found.trash else None),
            ]
        ),
    )


def _print_check(found: CheckView, quarantine: bool) -> None:
    looked = f"{plural(found.chunks, 'chunk')}, {size(found.size)}"
    bad = len(found.damaged_chunks) + len(found.missing_chunks)
    if not bad and not found.hurt:
        out.info(f"No damage found: {looked} verified.")
        return
    out.info(f"{len(found.damaged_chunks)} damaged and {len(found.missing_chunks)} missing of {looked}.")
    if found.hurt:
        columns = [
            Column("DAMAGED", lambda d: d.kind),
            Column("NAME", lambda d: d.name),
            Column("ID", lambda d: d.id),
        ]
        out.table(found.hurt, columns)
    else:
        out.info("No dataset, checkpoint or source uses them.")
    if not quarantine:
        out.info(f"To repair: {out.prog} store check --quarantine, then push the same files again.")


def _print_gc(found: GcView, dry_run: bool) -> None:
    would = "Would remove" if dry_run else "Removed"
    kept = f"{plural(found.chunks_kept, 'chunk')} kept."
    out.info(f"{would} {plural(found.chunks_removed, 'chunk')}, {size(found.bytes_freed)}; {kept}")
