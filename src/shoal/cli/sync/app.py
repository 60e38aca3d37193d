"""`shoal sync` and `shoal training import`: send runs that were made without a server to a server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from shoal.cli.shared.format import plural
from shoal.cli.shared.output import out
from shoal.cli.shared.session import connect

if TYPE_CHECKING:
    from shoal.cli.sync.import_run import Importer
    from shoal.core.jobs import JobSummary

FOLLOW_EVERY_S = 2.0


def sync(*dirs: Path, follow: Annotated[bool, Parameter(name=("--follow", "-f"))] = False) -> None:
    """Send runs made without a server to the server: metrics, media, output and checkpoints.

    Each run becomes a job. Run it again to send only new data. A run that is
    still in progress can be sent too. Offline runs of Weights & Biases are
    found in their folders, and sent with metrics, parameters and output.

    For example:

      shoal sync
      shoal sync ./wandb
      shoal sync ./shoal-runs/train-20250131-120000-1a2b
      shoal sync ./shoal-runs --follow

    Parameters
    ----------
    dirs
        Run directories, or folders with run directories (default: ./shoal-runs). Also folders of W&B.
    follow
        Keep sending until the runs have ended.
    """
    from shoal.cli.sync.wandb_runs import unpack_runs

    runs = [run for folder in dirs or (Path("shoal-runs"),) for run in unpack_runs(folder)]
    _bring(runs, None, follow=follow)


def import_run(
    folder: Path,
    /,
    *,
    name: str | None = None,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"))] = False,
) -> None:
    """Send a run made without a server to the server, as a job.

    Run it again to send only new data.

    For example:

      shoal training import ./shoal-runs/train-20250131-120000-1a2b
      shoal training import ./run --name baseline

    Parameters
    ----------
    folder
        Run directory.
    name
        Name of the job (default: the run's name).
    follow
        Keep sending until the run has ended.
    """
    from shoal.cli.sync.wandb_runs import unpack_runs
    from shoal.core.errors import UsageError

    runs = unpack_runs(folder)
    if len(runs) > 1:
        raise UsageError(f"There are {len(runs)} runs in {folder}.", hint=f"Name one, or: {out.prog} sync {folder}")
    _bring(runs, name, follow=follow)


def _bring(runs: list[tuple[Path, Path | None]], name: str | None, *, follow: bool) -> None:
    """Send runs: each a run directory, and the folder of W&B that it is converted from in every pass, or None."""
    from shoal.cli.sync.import_run import Importer
    from shoal.cli.sync.wandb_runs import convert

    with connect() as client:
        going = [(Importer(client, root, name), origin) for root, origin in runs]
        done: list[dict[str, Any]] = []
        while going:
            left = []
            for run, origin in going:
                if origin is not None:
                    convert(origin)
                if (job := _pass(run, follow=follow)) is None:
                    left.append((run, origin))
                    continue
                if follow and not job.status.is_terminal:
                    left.append((run, origin))
                else:
                    done.append(_report(run, job))
            going = left
            if going:
                time.sleep(FOLLOW_EVERY_S)
    if out.json:
        out.emit(done)


def _pass(run: Importer, *, follow: bool) -> JobSummary | None:
    """Send new data and return the job. With `follow`, return None if the server is unreachable or its disk is full."""
    from shoal.core.errors import StorageFull, Unreachable

    try:
        return run.pass_once()
    except (Unreachable, StorageFull) as error:
        if not follow:
            raise
        out.warn(f"{error.message} Trying again.")
        return None


def _report(run: Importer, job: JobSummary) -> dict[str, Any]:
    brought = run.brought
    counts = [
        plural(brought.records, "record"),
        plural(brought.log_lines, "line") + " of output" if brought.log_lines else "",
        f"{brought.media} media" if brought.media else "",
        plural(brought.checkpoints, "checkpoint") if brought.checkpoints else "",
        plural(brought.bugs, "bug capsule") if brought.bugs else "",
    ]
    for problem in brought.problems:
        out.warn(problem)
    out.info(f"Job '{job.name}' ({job.status}): {', '.join(c for c in counts if c)} sent.")
    return {
        "id": job.id,
        "name": job.name,
        "status": job.status.value,
        "dir": str(run.root),
        "records": brought.records,
        "log_lines": brought.log_lines,
        "media": brought.media,
        "checkpoints": brought.checkpoints,
        "bugs": brought.bugs,
    }
