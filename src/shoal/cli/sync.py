"""`shoal sync` and `shoal training import`: runs made without a server, brought into one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from shoal.cli._format import plural
from shoal.cli._output import out
from shoal.cli._session import connect

if TYPE_CHECKING:
    from shoal.cli._run_import import Importer
    from shoal.core.jobs import JobSummary

FOLLOW_EVERY_S = 2.0


def sync(*dirs: Path, follow: Annotated[bool, Parameter(name=("--follow", "-f"))] = False) -> None:
    """Send runs made without a server to one: metrics, media, output and checkpoints.

    Each run becomes a job. Done again, only what is new is sent; a run that
    still goes on can be sent too.

    For example:

      shoal sync
      shoal sync ./shoal-runs/train-20250131-120000-1a2b
      shoal sync ./shoal-runs --follow

    Parameters
    ----------
    dirs
        Run directories, or folders of them (default: ./shoal-runs).
    follow
        Go on until the runs have ended.
    """
    from shoal.cli._run_files import find_runs

    roots = [root for folder in dirs or (Path("shoal-runs"),) for root in find_runs(folder)]
    _bring(roots, None, follow=follow)


def import_run(
    folder: Path,
    /,
    *,
    name: str | None = None,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"))] = False,
) -> None:
    """Put a run made without a server into one, as a job.

    Done again, only what is new is sent.

    For example:

      shoal training import ./shoal-runs/train-20250131-120000-1a2b
      shoal training import ./run --name baseline

    Parameters
    ----------
    folder
        The run's directory.
    name
        Name of the job (default: the run's).
    follow
        Go on until the run has ended.
    """
    from shoal.cli._run_files import find_runs
    from shoal.core.errors import UsageError

    roots = find_runs(folder)
    if len(roots) > 1:
        raise UsageError(f"There are {len(roots)} runs in {folder}.", hint=f"Name one, or: {out.prog} sync {folder}")
    _bring(roots, name, follow=follow)


def _bring(roots: list[Path], name: str | None, *, follow: bool) -> None:
    from shoal.cli._run_import import Importer

    with connect() as client:
        going = [Importer(client, root, name) for root in roots]
        done: list[dict[str, Any]] = []
        while going:
            left = []
            for run in going:
                if (job := _pass(run, follow=follow)) is None:
                    left.append(run)
                    continue
                if follow and not job.status.is_terminal:
                    left.append(run)
                else:
                    done.append(_tell(run, job))
            going = left
            if going:
                time.sleep(FOLLOW_EVERY_S)
    if out.json:
        out.emit(done)


def _pass(run: Importer, *, follow: bool) -> JobSummary | None:
    """Send what is new. One that follows goes on when the server is away or cannot write; None for such a pass."""
    from shoal.core.errors import StorageFull, Unreachable

    try:
        return run.pass_once()
    except (Unreachable, StorageFull) as error:
        if not follow:
            raise
        out.warn(f"{error.message} Trying again.")
        return None


def _tell(run: Importer, job: JobSummary) -> dict[str, Any]:
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
    out.say(f"Job '{job.name}' ({job.status}): {', '.join(c for c in counts if c)} sent.")
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
