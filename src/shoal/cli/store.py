"""`shoal store`: the upkeep of the server's store, for its admins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cyclopts import App

from shoal.cli._format import plural, size
from shoal.cli._output import Column, out
from shoal.cli._parse import parse_duration
from shoal.cli._session import connect

if TYPE_CHECKING:
    from shoal.core.artifacts import CheckView, GcView

app = App(name="store")


@app.command
def check(*, quarantine: bool = False) -> int:
    """Read and verify every byte of the store; exits with 1 if something is damaged.

    Names the datasets, checkpoints and sources that are hurt. Damaged
    checkpoints are no longer used to resume from.

    For example:

      shoal store check
      shoal store check --quarantine

    Parameters
    ----------
    quarantine
        Set damaged parts aside, so that pushing the same files again heals them.
    """
    with connect() as client:
        out.stick("Reading the whole store …")
        found = client.upkeep.check(quarantine=quarantine)
        out.stick("")
    out.show(found, lambda: _tell_check(found, quarantine))
    return 1 if found.damaged_chunks or found.missing_chunks or found.hurt else 0


@app.command
def gc(*, grace: str = "1d", dry_run: bool = False) -> None:
    """Remove from the store what nothing refers to any more.

    For example:

      shoal store gc
      shoal store gc --dry-run
      shoal store gc --grace 1h

    Parameters
    ----------
    grace
        Spare what is younger: an upload may be about to use it (default 1d).
    dry_run
        Only say what would go.
    """
    grace_s = 0.0 if grace.strip() in ("0", "0s") else parse_duration(grace, "--grace")
    with connect() as client:
        found = client.upkeep.gc(grace_s=grace_s, dry_run=dry_run)
    out.show(found, lambda: _tell_gc(found, dry_run))


@app.command
def usage() -> None:
    """Show what the store takes, and what sharing and compression save.

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
                ("Artifacts", f"{found.manifests}, of {size(found.logical)} in all{saved}"),
                ("Chunks", f"{found.chunks} in {plural(found.packs, 'pack')} and single files"),
                ("About to go", size(found.trash) if found.trash else None),
            ]
        ),
    )


def _tell_check(found: CheckView, quarantine: bool) -> None:
    looked = f"{plural(found.chunks, 'chunk')}, {size(found.size)}"
    bad = len(found.damaged_chunks) + len(found.missing_chunks)
    if not bad and not found.hurt:
        out.say(f"All is well: {looked} read and verified.")
        return
    out.say(f"{len(found.damaged_chunks)} damaged and {len(found.missing_chunks)} missing of {looked}.")
    if found.hurt:
        columns = [
            Column("HURT", lambda d: d.kind),
            Column("NAME", lambda d: d.name),
            Column("ID", lambda d: d.id),
        ]
        out.table(found.hurt, columns)
    else:
        out.say("Nothing that is still there needs them.")
    if not quarantine:
        out.say(f"To heal: {out.prog} store check --quarantine, then push the same files again.")


def _tell_gc(found: GcView, dry_run: bool) -> None:
    would = "Would remove" if dry_run else "Removed"
    kept = f"{plural(found.chunks_kept, 'chunk')} stay."
    out.say(f"{would} {plural(found.chunks_removed, 'chunk')}, {size(found.bytes_freed)}; {kept}")
