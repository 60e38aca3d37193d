"""`shoal replay` and `shoal training replay`: run a failed step again on this machine, to debug it or to test a fix."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from shoal.cli.shared.output import out
from shoal.cli.shared.session import connect
from shoal.core.errors import NotFound, TimedOut

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.core.bugs import BugView
    from shoal.core.jobs import JobView

REPLAYS = "shoal-replays"
_WAIT_S = 120.0
_LOOK_S = 0.5


def replay(
    folder: Path,
    /,
    *args: str,
    step: int | None = None,
    rank: int | None = None,
    debug: Annotated[bool, Parameter(name="--pdb")] = False,
    emulate_cuda: bool = False,
) -> int:
    """Run a failed step again with the same batch, weights and random numbers.

    The script is started with the same arguments, in one process; its Trainer
    runs only that step. Nothing is trained or saved. Exits 1 if the step fails
    again (with the same or another exception), 0 if it succeeds.

    For example:

      shoal replay ./shoal-runs/train-20250131-120000-1a2b
      shoal replay ./shoal-runs/train-20250131-120000-1a2b --step 1200 --pdb
      shoal replay ./bug/step-000001200-rank-0 -- --lr 1e-4

    Parameters
    ----------
    folder
        Capsule of the step, or the run's directory.
    args
        New arguments for the script, after `--` (default: the same as before).
    step
        Failed step to run, if there are several (default: the newest).
    rank
        Rank of the worker, if several failed.
    debug
        Open the debugger where the step fails.
    emulate_cuda
        Run code that asks for CUDA on the CPU.
    """
    from shoal.cli.replay.start import Again, find_capsule

    capsule = find_capsule(folder, step=step, rank=rank)
    return Again(capsule, args=list(args), debug=debug, env=_emulation(emulate_cuda)).run()


def replay_job(
    job: str,
    /,
    *args: str,
    step: int | None = None,
    rank: int | None = None,
    debug: Annotated[bool, Parameter(name="--pdb")] = False,
    emulate_cuda: bool = False,
    destination: Annotated[Path | None, Parameter(name=("--destination", "-d"))] = None,
) -> int:
    """Run a failed step of a job again on this machine, with the job's code.

    Code and capsule are downloaded to ./shoal-replays/JOB. Existing code there
    is not replaced: edit it and run the command again until it exits 0. The
    job's datasets are not downloaded.

    For example:

      shoal training replay hello
      shoal training replay hello --step 1200 --pdb
      shoal training replay hello --emulate-cuda

    Parameters
    ----------
    job
        Name or id of the job.
    args
        New arguments for the script, after `--` (default: the job's).
    step
        Failed step to run, if there are several (default: that of the last attempt).
    rank
        Rank of the worker, if several failed.
    debug
        Open the debugger where the step fails.
    emulate_cuda
        Run code that asks for CUDA on the CPU.
    destination
        Folder for code and capsule (default: ./shoal-replays/JOB).
    """
    from shoal.cli.replay.start import Again

    with connect() as client:
        view = client.jobs.get(job)
        bug = _awaited(client, view, _choose(view, step, rank))
        root = destination or Path(REPLAYS) / view.name
        capsule = root / bug.name
        client.bugs.fetch(view.id, bug.id, capsule)
        code = None if view.imported else _code(client, view, root / "code")
    # The server has no code of an imported run: the script is looked for here, or in the folder where it ran.
    entry, env = ([], {}) if code is None else (view.spec.entry, view.spec.env)
    env = env | _emulation(emulate_cuda)
    return Again(capsule, args=list(args), debug=debug, code=code, entry=entry, env=env).run()


def _emulation(on: bool) -> dict[str, str]:
    from shoal.core.device_check import EMULATE_CUDA

    return {EMULATE_CUDA: "1"} if on else {}


def _code(client: Client, job: JobView, folder: Path) -> Path:
    if folder.exists():
        out.info(f"Using the existing code in {folder}. To get the job's original code, delete that folder first.")
    else:
        client.bugs.fetch_source(job.id, folder)
        out.info(f"The job's code is in {folder}.")
    return folder


def _choose(job: JobView, step: int | None, rank: int | None) -> BugView:
    """Return the first failed step of the last attempt that has any: later failures may be a consequence of it."""
    found = [b for b in job.bugs if step in (None, b.step) and rank in (None, b.rank)]
    if not found:
        if job.bugs:
            known = ", ".join(f"step {b.step} of rank {b.rank}" for b in job.bugs)
            raise NotFound(f"Job '{job.name}' has no such failed step. Failed steps: {known}.")
        raise NotFound(
            f"Job '{job.name}' has no saved failed step. Only failures inside Trainer.fit() are saved.",
            hint=f"{out.prog} training logs {job.name}",
        )
    last = max(b.attempt for b in found)
    return min((b for b in found if b.attempt == last), key=lambda b: b.at)


def _awaited(client: Client, job: JobView, bug: BugView) -> BugView:
    import time

    deadline = time.monotonic() + _WAIT_S
    if not bug.ready:
        out.info(f"The capsule of step {bug.step} is being uploaded to the server.")
    while not bug.ready:
        if time.monotonic() > deadline:
            raise TimedOut(
                f"The capsule of step {bug.step} has not reached the server yet.",
                hint=f"Check that the job's machine is up: {out.prog} training inspect {job.name}",
            )
        time.sleep(_LOOK_S)
        bug = next(b for b in client.bugs.list(job.id) if b.id == bug.id)
    return bug
