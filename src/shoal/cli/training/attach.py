"""`shoal training attach` and `shell`: a shell in a running job, or in a job that is started only for the shell."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

from shoal.cli.console import show_link
from shoal.cli.machine.ssh import demand_ssh, new_key, options
from shoal.cli.shared.job_flags import JobFlags, check_job, submitting
from shoal.cli.shared.output import out
from shoal.cli.shared.session import connect
from shoal.cli.shared.source import send_source
from shoal.client.job_names import create_job
from shoal.client.waiting import poll
from shoal.core.errors import Forbidden, JobFailed, TimedOut, Unreachable, UsageError
from shoal.core.states import JobState

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.core.attach import AttachView
    from shoal.core.jobs import JobView

HOLD = ("python", "-m", "shoal.agent.workers.interactive")
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
    """Open a shell inside a running job, or run a command there and exit with its exit code. The job continues.

    The shell has the files, processes, environment and slots of the job's
    workers.

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
        Command to run instead of a shell, after `--`.
    node
        Number of the node, counted from 0 (default 0).
    jupyter
        Start JupyterLab in the job instead, and open it in your browser.
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
    """Open a shell with the code, environment, data and slots of a job. The slots are released when you leave.

    The shell starts in the folder of the code; requirements are installed and
    datasets are at /input/NAME. Run your script as often as you like, with
    `python` or `torchrun`. To keep results, copy them out or write them to
    /output-checkpoint. The job ends after 8 hours unless --time-limit is given.

    For example:

      shoal training shell
      shoal training shell try --dataset wikitext --accels 2
      shoal training shell try -u https://github.com/me/exp -- python train.py --steps 10
      shoal training shell try --jupyter

    Parameters
    ----------
    name
        Name of the job that reserves the slots (default 'shell').
    command
        Command to run instead of a shell, after `--`.
    jupyter
        Start JupyterLab instead, and open it in your browser; Ctrl-C ends it and the job.
    """
    refuse_command(command) if jupyter else demand_ssh()
    flags = flags or JobFlags()
    choice = flags.choice()
    spec = check_job(name, HOLD, flags.wanted() | {"max_restarts": 0}, choice, command="training shell")
    spec.time_limit_s = spec.time_limit_s or _LONGEST_S
    with connect() as client:
        spec.source_id, spec.entry = send_source(client, choice, HOLD)
        with submitting(f"training attach {name}"):
            job = create_job(client, spec, say=out.info)
        try:
            _wait_running(client, job.id)
            if jupyter:
                open_jupyter(client, job)
                return _wait_ended(client, job.id)
            return go_in(client, job.id, list(command))
        finally:
            client.jobs.stop(job.id)
            out.info(f"Job '{job.name}' was stopped.")


def go_in(client: Client, job: str, command: list[str], *, node: int = 0) -> int:
    """Run ssh into a job until the shell or command ends; return ssh's exit code."""
    with new_key() as (key, public):
        view = _wait(client, job, public, node)
        argv = ["ssh", *options(view, key), *([] if command else ["-t"]), f"{view.login}@{view.host}", *command]
        return subprocess.run(argv, check=False).returncode


def open_jupyter(client: Client, job: JobView, *, node: int = 0) -> None:
    """Start JupyterLab in a job and open it in the browser, through a console link that signs the user in."""
    out.dim(f"{job.name}: starting JupyterLab")
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
    except Forbidden:  # this key cannot create a console link: the user has to sign in there
        out.show({"url": client.url + path}, lambda: out.line(client.url + path))
        out.info("Sign in to the console, then open the link.")


def refuse_command(command: tuple[str, ...]) -> None:
    if command:
        raise UsageError("--jupyter cannot be combined with a command after `--`.")


def _wait_ended(client: Client, job_id: str) -> int:
    """Wait until the job ends or Ctrl-C is pressed. If the server is unreachable, the job continues and we keep waiting."""
    out.info("Press Ctrl-C to end JupyterLab and the job.")
    job, is_away = None, False
    try:
        while job is None or not job.status.is_terminal:
            time.sleep(_LOOK_S)
            try:
                job, is_away = client.jobs.get(job_id), False
            except Unreachable as error:
                if not is_away:
                    out.warn(f"{error.message} The job continues; waiting for the server.")
                is_away = True
    except KeyboardInterrupt:
        return 0
    if job.status == JobState.FAILED:
        raise JobFailed(f"Job '{job.name}' failed: {job.reason}", hint=f"{out.prog} training logs {job.name}")
    return 0


def _wait_running(client: Client, job_id: str) -> None:
    """Wait until a job runs; raise JobFailed if it ends before."""
    said = ""
    while (job := client.jobs.get(job_id)).status != JobState.RUNNING:
        if job.status.is_terminal:
            raise JobFailed(f"Job '{job.name}' {job.status}: {job.reason}", hint=f"{out.prog} training logs {job.name}")
        if (news := job.waiting or str(job.status)) != said:
            out.dim(f"{job.name}: {news}")
            said = news
        time.sleep(_PAUSE_S)


def _wait(client: Client, job: str, public_key: str, node: int) -> AttachView:
    """Wait until the job's agent accepts the SSH key; return the address and login."""
    view = poll(
        lambda: client.jobs.attach(job, public_key, node),
        lambda way: way.is_ready,
        within_s=_READY_S,
        pause_s=_PAUSE_S,
    )
    if not view.is_ready:
        raise TimedOut(
            f"The agent of job '{job}' did not open the connection within {_READY_S:.0f} seconds.",
            hint=f"{out.prog} training inspect {job}",
        )
    return view
