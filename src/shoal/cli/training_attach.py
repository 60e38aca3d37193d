"""`shoal training attach` and `shell`: inside a job that runs, or one that runs only for this."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

from shoal.cli._job_flags import JobFlags, check_job, submitting
from shoal.cli._machine_ssh import demand_ssh, new_key, options
from shoal.cli._output import out
from shoal.cli._session import connect
from shoal.cli._source import send_source
from shoal.cli.console import show_link
from shoal.client.waiting import poll
from shoal.core.errors import Forbidden, JobFailed, TimedOut, Unreachable, UsageError
from shoal.core.states import JobState

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.core.attach import AttachView
    from shoal.core.jobs import JobView

HOLD = ("python", "-m", "shoal.agent.hold")
_LONGEST_S = 8 * 3600
_READY_S = 60.0
_JUPYTER_S = 180.0
_PAUSE_S = 0.1
_LOOK_S = 1.0


def attach(
    name: str,
    /,
    *command: str,
    node: int = 0,
    jupyter: bool = False,
) -> int:
    """Open a shell inside a running job, or run a command there; exits as it does. The job goes on meanwhile.

    It sees what the job's workers see: their files, their processes, their
    environment and their slots.

    For example:

      shoal training attach hello
      shoal training attach hello --node 1
      shoal training attach hello -- nvidia-smi
      shoal training attach hello -- py-spy top --pid 3
      shoal training attach hello --jupyter

    Parameters
    ----------
    name
        The job's name or id.
    command
        After `--`: what to run there instead of a shell.
    node
        Which of its nodes, counted from 0 (default 0).
    jupyter
        Start JupyterLab there instead, and open it in your browser.
    """
    if jupyter:
        refuse_command(command)
        with connect() as client:
            open_jupyter(client, client.jobs.get(name), node=node)
        return 0
    demand_ssh()
    with connect() as client:
        return go_in(client, name, list(command), node=node)


def shell(
    name: str = "shell",
    /,
    *command: str,
    flags: JobFlags | None = None,
    jupyter: bool = False,
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
      shoal training shell try --jupyter

    Parameters
    ----------
    name
        What to call the job that holds the slots meanwhile (default 'shell').
    command
        After `--`: what to run there instead of a shell.
    jupyter
        Start JupyterLab there instead, and open it in your browser; Ctrl-C ends it and the job.
    """
    refuse_command(command) if jupyter else demand_ssh()
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
            if jupyter:
                open_jupyter(client, job)
                return _wait_ended(client, job.id)
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


def open_jupyter(client: Client, job: JobView, *, node: int = 0) -> None:
    """In the browser of whoever has this key: they come by the console, where they are signed in."""
    out.dim(f"{job.name}: JupyterLab starts")
    view = poll(
        lambda: client.jobs.jupyter(job.id, node),
        lambda lab: lab.is_ready,
        within_s=_JUPYTER_S,
        pause_s=_PAUSE_S,
    )
    if not view.is_ready:
        raise TimedOut(
            f"JupyterLab did not start in job '{job.name}' within {_JUPYTER_S:.0f} seconds.",
            hint=f"{out.prog} training logs {job.name}",
        )
    path = f"/w/{quote(client.workspace, safe='')}/jobs/{job.id}/jupyter" + (f"?node={node}" if node else "")
    try:
        show_link(f"{client.url}{client.auth.console_path()}?next={quote(path, safe='')}")
    except Forbidden:  # a key that cannot open the console: whoever has it signs in there
        out.show({"url": client.url + path}, lambda: out.line(client.url + path))
        out.say("Sign in to the console, then open the link.")


def refuse_command(command: tuple[str, ...]) -> None:
    if command:
        raise UsageError("--jupyter goes without a command after `--`.")


def _wait_ended(client: Client, job_id: str) -> int:
    """Until the job ends, or Ctrl-C. It goes on while the server is away, and so do we."""
    out.say("Ctrl-C ends JupyterLab and the job.")
    job, is_away = None, False
    try:
        while job is None or not job.status.is_terminal:
            time.sleep(_LOOK_S)
            try:
                job, is_away = client.jobs.get(job_id), False
            except Unreachable as error:
                if not is_away:
                    out.warn(f"{error.message} The job goes on; waiting for the server.")
                is_away = True
    except KeyboardInterrupt:
        return 0
    if job.status == JobState.FAILED:
        raise JobFailed(f"Job '{job.name}' failed: {job.reason}", hint=f"{out.prog} training logs {job.name}")
    return 0


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
