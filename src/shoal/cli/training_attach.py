"""`shoal training attach` and `shell`: inside a job that runs, or one that runs only for this."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from shoal.cli._job_flags import JobFlags, check_job, submitting
from shoal.cli._machine_ssh import demand_ssh, new_key, options
from shoal.cli._output import out
from shoal.cli._session import connect
from shoal.cli._source import send_source
from shoal.client.waiting import poll
from shoal.core.errors import JobFailed, TimedOut
from shoal.core.states import JobState

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.core.attach import AttachView

HOLD = ("python", "-m", "shoal.agent.hold")
_LONGEST_S = 8 * 3600
_READY_S = 60.0
_PAUSE_S = 0.1


def attach(name: str, /, *command: Annotated[str, Parameter(allow_leading_hyphen=True)], node: int = 0) -> int:
    """Open a shell inside a running job, or run a command there; exits as it does. The job goes on meanwhile.

    It sees what the job's workers see: their files, their processes, their
    environment and their slots.

    For example:

      shoal training attach hello
      shoal training attach hello --node 1
      shoal training attach hello -- nvidia-smi
      shoal training attach hello -- py-spy top --pid 3

    Parameters
    ----------
    name
        The job's name or id.
    command
        After `--`: what to run there instead of a shell.
    node
        Which of its nodes, counted from 0 (default 0).
    """
    demand_ssh()
    with connect() as client:
        return go_in(client, name, list(command), node=node)


def shell(
    name: str = "shell",
    /,
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    flags: JobFlags | None = None,
) -> int:
    """Open a shell where a job would run: its code, its environment, its data, its slots. They are given back when you leave.

    The code is in the folder you are in there, requirements are installed,
    datasets are at /input/NAME; run your script as often as you like, with
    `python` or `torchrun`. Copy out what you want to keep, or write it to
    /output-checkpoint. It ends after 8 hours unless --time-limit says otherwise.

    For example:

      shoal training shell
      shoal training shell try --dataset wikitext --accels 2
      shoal training shell try -u https://github.com/me/exp -- python train.py --steps 10

    Parameters
    ----------
    name
        What to call the job that holds the slots meanwhile (default 'shell').
    command
        After `--`: what to run there instead of a shell.
    """
    demand_ssh()
    flags = flags or JobFlags()
    choice = flags.choice()
    spec = check_job(name, HOLD, flags.wanted() | {"max_restarts": 0}, choice, command="training shell")
    spec.time_limit_s = spec.time_limit_s or _LONGEST_S
    with connect() as client:
        spec.source_id, spec.entry = send_source(client, choice, HOLD)
        with submitting(f"training attach {name}"):
            job = client.jobs.create(spec)
        try:
            _wait_running(client, job.id)
            return go_in(client, job.id, list(command))
        finally:
            client.jobs.stop(job.id)
            out.say(f"Job '{name}' was stopped.")


def go_in(client: Client, job: str, command: list[str], *, node: int = 0) -> int:
    """Until whoever is in there leaves; returns what ssh exits with."""
    with new_key() as (key, public):
        view = _wait(client, job, public, node)
        argv = ["ssh", *options(view, key), *([] if command else ["-t"]), f"{view.login}@{view.host}", *command]
        return subprocess.run(argv, check=False).returncode


def _wait_running(client: Client, job_id: str) -> None:
    """Or JobFailed, if it never does."""
    said = ""
    while (job := client.jobs.get(job_id)).status != JobState.RUNNING:
        if job.status.is_terminal:
            raise JobFailed(f"Job '{job.name}' {job.status}: {job.reason}", hint=f"{out.prog} training logs {job.name}")
        if (news := job.waiting or str(job.status)) != said:
            out.dim(f"{job.name}: {news}")
            said = news
        time.sleep(_PAUSE_S)


def _wait(client: Client, job: str, public_key: str, node: int) -> AttachView:
    """Until the job's agent has opened the way."""
    view = poll(
        lambda: client.jobs.attach(job, public_key, node),
        lambda way: way.is_ready,
        within_s=_READY_S,
        pause_s=_PAUSE_S,
    )
    if not view.is_ready:
        raise TimedOut(
            f"The agent of job '{job}' did not let us in within {_READY_S:.0f} seconds.",
            hint=f"{out.prog} training inspect {job}",
        )
    return view
