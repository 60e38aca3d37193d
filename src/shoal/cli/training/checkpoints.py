"""`shoal training checkpoints`, `fetch` and `resume`: list and download a job's checkpoints, and continue from them."""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

from cyclopts import Parameter

from shoal.cli.shared.format import plural, size
from shoal.cli.shared.output import Column, out
from shoal.cli.shared.session import connect
from shoal.core.errors import NotFound

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.core.checkpoints import CheckpointView

COLUMNS = [
    Column("ID", lambda c: c.id, is_id=True),
    Column("NAME", lambda c: c.name),
    Column("NODE", lambda c: c.node, is_right=True, rank=2),
    Column("STEP", lambda c: c.step, is_right=True),
    Column("TRAIN LOSS", lambda c: loss(c.train_loss), is_right=True, rank=2),
    Column("EVAL LOSS", lambda c: loss(c.eval_loss), is_right=True, rank=3),
    Column("MODEL", lambda c: c.model, rank=5),
    Column("VERSION", lambda c: c.version, rank=5),
    Column("INFERENCE READY", lambda c: "yes" if c.inference_ready else "no", rank=4),
    Column("TIMESTAMP", lambda c: c.timestamp, rank=1),
]
"""Columns of a list of checkpoints, in the order of flexai's list."""
FOLDER = "output"


def checkpoints(job: str, /) -> None:
    """List the checkpoints of a job, oldest first, even while it runs.

    For example:

      shoal training checkpoints hello
      shoal training checkpoints hello --json

    Parameters
    ----------
    job
        The job's name or id.
    """
    with connect() as client:
        found = client.checkpoints.list(job)
    empty = (
        "No checkpoints yet. Each folder that the script writes to /output-checkpoint becomes one; "
        f"with the SDK they are saved for you: {out.prog} instrument SCRIPT.py"
    )
    out.show(found, lambda: out.table(found, COLUMNS, empty=empty))
    for checkpoint in found:
        if checkpoint.damaged:
            out.warn(f"{checkpoint.id} is damaged in the store and is not used. See: {out.prog} store check")


def fetch(
    job: str,
    /,
    *,
    destination: Annotated[Path, Parameter(name=("--destination", "-d"))] = Path(),
    no_zip: bool = False,
    force: bool = False,
) -> None:
    """Download the newest checkpoint of each of a job's nodes, as output_NODE.zip.

    Each archive contains a folder `output` with the files.

    For example:

      shoal training fetch hello
      shoal training fetch hello --destination ./results --no-zip

    Parameters
    ----------
    job
        The job's name or id.
    destination
        Folder to write to (default: the current folder).
    no_zip
        Write folders output_NODE instead of archives.
    force
        Overwrite existing archives, and existing files that differ.
    """
    with connect() as client:
        newest = client.checkpoints.newest(job)
        if not newest:
            raise NotFound(
                f"Job '{job}' has no checkpoint that can be downloaded.", hint=f"{out.prog} training checkpoints {job}"
            )
        destination.mkdir(parents=True, exist_ok=True)
        written = []
        for node, checkpoint in sorted(newest.items()):
            target = destination / (f"output_{node}" if no_zip else f"output_{node}.zip")
            (_fetch_folder if no_zip else _fetch_zip)(client, checkpoint, target, force)
            written.append({"node": node, "checkpoint": checkpoint.id, "name": checkpoint.name, "path": str(target)})
            if not out.json:
                out.line(str(target))
                step = "" if checkpoint.step is None else f", step {checkpoint.step}"
                out.info(f"  {checkpoint.name} ({checkpoint.id}{step}): {_extent(checkpoint)}")
    if out.json:
        out.emit(written)


def resume(job: str, /, *, follow: Annotated[bool, Parameter(name=("--follow", "-f"))] = False) -> int:
    """Continue a stopped or failed job from its newest good checkpoint.

    For example:

      shoal training resume hello
      shoal training resume hello -f

    Parameters
    ----------
    job
        The job's name or id.
    follow
        Follow the job until it ends; the exit code is its result. Ctrl-C only stops following.
    """
    from shoal.cli.training.follow import LogOptions, follow_job
    from shoal.core.schema import utcnow

    with connect() as client:
        view, start = client.jobs.resume(job), utcnow()
        good = [c for c in client.checkpoints.list(view.id) if not c.damaged and not c.only_logs]
        good = [c for c in good if c.place == "output"] or good
        last = good[-1] if good else None
        step = "" if last is None or last.step is None else f" (step {last.step})"
        given = (
            f"Its next attempt is given {last.name}{step}."
            if last
            else "It has no checkpoint and starts from the beginning."
        )
        if not follow:
            out.show(view, lambda: out.info(f"Job '{view.name}' is queued again. {given}"))
            return 0
        out.info(f"Job '{view.name}' is queued again. {given}")
        return follow_job(client, view, LogOptions(num_workers=view.nodes * view.accels, since=start))


def loss(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"


def _fetch_folder(client: Client, checkpoint: CheckpointView, target: Path, force: bool) -> None:
    from shoal.cli.shared.fetching import fetch_with_bar

    fetch_with_bar(client.checkpoints, checkpoint.id, checkpoint.size, target, force=force)


def _fetch_zip(client: Client, checkpoint: CheckpointView, target: Path, force: bool) -> None:
    import shutil

    from shoal.cli.shared.atomic_file import refuse_existing, whole_file

    refuse_existing(target, "--destination DIR", force=force)
    # The folder is beside the archive and named after the checkpoint, so that an interrupted download is continued.
    folder = target.with_name(f".{target.stem}.{checkpoint.id}")
    _fetch_folder(client, checkpoint, folder, force=True)
    try:
        with whole_file(target) as file:
            _write_zip(folder, file)
    finally:
        shutil.rmtree(folder)


def _write_zip(folder: Path, file: IO[bytes]) -> None:
    """Write the folder as an uncompressed zip archive: weights hardly compress."""
    import zipfile

    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.mkdir(FOLDER)
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, f"{FOLDER}/{path.relative_to(folder).as_posix()}")


def _extent(checkpoint: CheckpointView) -> str:
    return f"{plural(checkpoint.files, 'file')}, {size(checkpoint.size)}"
