"""`shoal replay` and `shoal training replay`: run a failed step again, here, to see why it failed or that it is mended."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from shoal.cli._output import out
from shoal.cli._session import connect
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
    """Run a step that failed again: the same batch, weights and random numbers.

    The script is started as it was then, in one process; its Trainer does
    that step alone. Nothing is trained or saved. The exit code is 1 if the
    exception comes again (or another one) and 0 if it does not any more.

    For example:

      shoal replay ./shoal-runs/train-20250131-120000-1a2b
      shoal replay ./shoal-runs/train-20250131-120000-1a2b --step 1200 --pdb
      shoal replay ./bug/step-000001200-rank-0 -- --lr 1e-4

    Parameters
    ----------
    folder
        The capsule of the step, or the run's directory.
    args
        Arguments for the script, after `--`, in place of those it had.
    step
        Which failed step, where there are several (default: the newest).
    rank
        Which worker's, where several failed.
    debug
        Stop in the debugger where it fails.
    emulate_cuda
        Run code that asks for CUDA on the CPU.
    """
    from shoal.cli._replay import Again, find_capsule

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

    Code and capsule are fetched to ./shoal-replays/JOB. Code that is there
    already stays as it is: change it and call this again, until the exit
    code is 0. The job's data is not fetched.

    For example:

      shoal training replay hello
      shoal training replay hello --step 1200 --pdb
      shoal training replay hello --emulate-cuda

    Parameters
    ----------
    job
        The job's name or id.
    args
        Arguments for the script, after `--`, in place of the job's.
    step
        Which failed step, where there are several (default: that of the last attempt).
    rank
        Which worker's, where several failed.
    debug
        Stop in the debugger where it fails.
    emulate_cuda
        Run code that asks for CUDA on the CPU.
    destination
        Folder for code and capsule (default: ./shoal-replays/JOB).
    """
    from shoal.cli._replay import Again

    with connect() as client:
        view = client.jobs.get(job)
        bug = _awaited(client, view, _choose(view, step, rank))
        root = destination or Path(REPLAYS) / view.name
        capsule = root / bug.name
        client.bugs.fetch(view.id, bug.id, capsule)
        code = None if view.imported else _code(client, view, root / "code")
    # A run from elsewhere brought no code: it is looked for where it ran.
    entry, env = ([], {}) if code is None else (view.spec.entry, view.spec.env)
    env = env | _emulation(emulate_cuda)
    return Again(capsule, args=list(args), debug=debug, code=code, entry=entry, env=env).run()


def _emulation(on: bool) -> dict[str, str]:
    from shoal.core.device_promise import EMULATE_CUDA

    return {EMULATE_CUDA: "1"} if on else {}


def _code(client: Client, job: JobView, folder: Path) -> Path:
    if folder.exists():
        out.say(f"Using the code in {folder} as it is. To have the job's own again, remove that folder first.")
    else:
        client.bugs.fetch_source(job.id, folder)
        out.say(f"The job's code is in {folder}.")
    return folder


def _choose(job: JobView, step: int | None, rank: int | None) -> BugView:
    """Of the last attempt that has any, the first to fail: the others may have fallen with it."""
    found = [b for b in job.bugs if step in (None, b.step) and rank in (None, b.rank)]
    if not found:
        if job.bugs:
            known = ", ".join(f"step {b.step} of rank {b.rank}" for b in job.bugs)
            raise NotFound(f"Job '{job.name}' has no such failed step; it has {known}.")
        raise NotFound(
            f"Job '{job.name}' has kept no failed step. Only what fails inside Trainer.fit() is kept.",
            hint=f"{out.prog} training logs {job.name}",
        )
    last = max(b.attempt for b in found)
    return min((b for b in found if b.attempt == last), key=lambda b: b.at)


def _awaited(client: Client, job: JobView, bug: BugView) -> BugView:
    import time

    deadline = time.monotonic() + _WAIT_S
    if not bug.ready:
        out.say(f"The capsule of step {bug.step} is on its way to the server.")
    while not bug.ready:
        if time.monotonic() > deadline:
            raise TimedOut(
                f"The capsule of step {bug.step} has not come to the server yet.",
                hint=f"Is the machine of the job up? {out.prog} training inspect {job.name}",
            )
        time.sleep(_LOOK_S)
        bug = next(b for b in client.bugs.list(job.id) if b.id == bug.id)
    return bug
