"""`shoal training run`: pack the code, submit the job, and follow it where asked."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from shoal.cli._format import plural
from shoal.cli._job_flags import SIZE, JobFlags, check_job, refuse_stray_words, submitting
from shoal.cli._output import out
from shoal.cli._session import connect
from shoal.cli._source import send_source
from shoal.core.errors import UsageError

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.core.jobs import JobSpec, JobView


def run(
    name: str,
    /,
    *entry: str,
    flags: JobFlags | None = None,
    batch: Annotated[str | None, Parameter(group=SIZE)] = None,
    quote: bool = False,
    no_check: bool = False,
    no_preflight: bool = False,
    interactive: bool = False,
    jupyter: bool = False,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"))] = False,
) -> int:
    """Run a script as a training job.

    The code travels by content: only what the server lacks is sent. Whatever
    follows `--` goes to the script as it is. Its requirements.txt, if there
    is one, is installed first. Datasets are at /input/NAME, and what the
    script writes to /output-checkpoint is kept.

    For example:

      shoal training run hello -f -- train.py --lr 3e-4
      shoal training run big --nodes 2 --accels 4 --time-limit 8h -- train.py
      shoal training run small --device cpu -- train.py
      shoal training run elastic --nodes 1:4 --grow -- train.py
      shoal training run from-git -u https://github.com/me/exp -b v1.2 -- train.py
      shoal training run from-colab --notebook train.ipynb -- --lr 3e-4
      shoal training run tracked --env WANDB_PROJECT=exp \\
          --secret WANDB_API_KEY=wandb --dataset wikitext \\
          -- train.py --data /input/wikitext

    Parameters
    ----------
    name
        What to call the job; unique in its workspace.
    entry
        After `--`: the script, relative to the code's root, and its arguments.
    batch
        Of jobs with one batch name, the longest expected starts first.
    quote
        First tell how long it will take and what it will cost, as far as jobs like it tell.
    no_check
        Do not look through the code for what would end the job (see `shoal check`).
    no_preflight
        Do not try its first steps before it is submitted (see `shoal preflight`).
    interactive
        Open a shell there instead, with what follows `--` left to you to run (see `training shell`).
    jupyter
        With --interactive: JupyterLab in your browser instead of a shell.
    follow
        Watch it until it ends, and exit as it does. Ctrl-C leaves it running.
    """
    from shoal.cli._findings import warn_of_fetched, warn_on_submit
    from shoal.cli._follow import LogOptions, follow_job
    from shoal.cli._preflight import before_submit

    refuse_stray_words(entry)
    flags = flags or JobFlags()
    if interactive:
        from shoal.cli.training_attach import shell

        return shell(name, flags=flags, jupyter=jupyter)
    if jupyter:
        raise UsageError("--jupyter goes with --interactive.")
    choice = flags.choice()
    spec = check_job(name, entry, flags.wanted() | {"batch": batch}, choice)
    with connect() as client:
        lasting = choice.archive is None and choice.notebook is None
        look = None if no_check else partial(warn_on_submit, spec, lasting=lasting)
        spec.source_id, spec.entry = send_source(client, choice, entry, look=look)
        if choice.is_fetched and not no_check:
            warn_of_fetched(client, spec)
        if quote:
            _tell_quote(client, spec)
        with before_submit(client, spec, skip=no_preflight) as found, submitting(f"training inspect {name}"):
            job = client.jobs.create(spec, preflight=found)
        if not follow:
            out.show(job, lambda: _tell_submitted(job))
            return 0
        out.say(f"Submitted job '{job.name}' ({_asked_for(job)}).")
        return follow_job(client, job, LogOptions(num_workers=job.nodes * job.accels))


def _tell_quote(client: Client, spec: JobSpec) -> None:
    from shoal.cli._quote import ask, lines

    for line in lines(ask(client, spec)):
        out.say(line)


def _tell_submitted(job: JobView) -> None:
    out.line(job.id)
    out.say(f"Submitted job '{job.name}' ({_asked_for(job)}).")
    out.dim(f"  {out.prog} training logs {job.name} -f")
    out.dim(f"  {out.prog} training inspect {job.name}")


def _asked_for(job: JobView) -> str:
    spec = job.spec
    nodes = (
        plural(spec.min_nodes, "node")
        if spec.min_nodes == spec.max_nodes
        else f"{spec.min_nodes} to {spec.max_nodes} nodes"
    )
    kind = "" if spec.device == "auto" else f", device {spec.device}"
    return f"{nodes} × {plural(spec.accels, 'accel')}{kind}"
