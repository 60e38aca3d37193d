"""`shoal training run`: upload the code, submit the job, and optionally follow it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from shoal.cli.shared.format import plural
from shoal.cli.shared.job_flags import CODE, SIZE, JobFlags, check_job, many, refuse_stray_words, submitting
from shoal.cli.shared.output import out
from shoal.cli.shared.parse import device_words
from shoal.cli.shared.session import connect, session
from shoal.cli.shared.source import SourceChoice, no_script, send_source
from shoal.client.job_names import create_job, free_name
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
    after: Annotated[list[str] | None, many("--after", group=SIZE)] = None,
    profile: Annotated[str | None, Parameter(group=CODE)] = None,
    print_spec: bool = False,
    replace: bool = False,
    reuse: bool = False,
    quote: bool = False,
    no_check: bool = False,
    no_preflight: bool = False,
    interactive: bool = False,
    jupyter: bool = False,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"))] = False,
) -> int:
    """Run a script as a training job.

    The code is uploaded; files that the server already has are not sent again.
    Everything after `--` is passed to the script unchanged. A requirements.txt
    in the code is installed first. Datasets are at /input/NAME; files that the
    script writes to /output-checkpoint are saved as checkpoints.

    Name, script and options that are not given are taken from the folder's
    shoal.yaml, if it has one (see `shoal init`); then `training run` is enough.

    For example:

      shoal training run hello -f -- train.py --lr 3e-4
      shoal training run -f -- train.py
      shoal training run big --nodes 2 --accels 4 --time-limit 8h -- train.py
      shoal training run small --device cpu -- train.py
      shoal training run elastic --nodes 1:4 --grow -- train.py
      shoal training run from-git -u https://github.com/me/exp -b v1.2 -- train.py
      shoal training run from-colab --notebook train.ipynb -- --lr 3e-4
      shoal training run tracked --env WANDB_PROJECT=exp \\
          --secret WANDB_API_KEY=wandb --dataset wikitext \\
          -- train.py --data /input/wikitext
      shoal training run --mount s3://bucket/images:/data \\
          --secret AWS_ACCESS_KEY_ID=s3-id --secret AWS_SECRET_ACCESS_KEY=s3-key \\
          -- train.py --data /data
      shoal training run score --after big --time-limit 1h -- score.py /input/big
      shoal training run -f --profile big
      shoal training run --profile big --print-spec -- --lr 1e-3

    Parameters
    ----------
    name
        Name of the job (default: one is made up). If a job has it already, the new one is numbered: NAME-2.
    entry
        The script, relative to the code's root, and its arguments, after `--`.
        Arguments without a script are added to those in shoal.yaml.
    batch
        Name of a batch. Among jobs of the same batch, the one with the longest --expected starts first.
    after
        Start only after this job has succeeded, or ended in any way: JOB or JOB:ended (repeatable).
        Its newest checkpoint is at /input/JOB, or with NAME=JOB at /input/NAME. If it fails, the new job is stopped. No preflight is run.
    profile
        Profile of the folder's shoal.yaml to use.
    print_spec
        Print the job's spec as JSON; send nothing.
    replace
        Delete the finished job of that name first.
    reuse
        Submit nothing if a job with the same code, inputs and options has succeeded.
    quote
        Show an estimate of time and cost first, based on similar jobs.
    no_check
        Do not check the code for mistakes (see `shoal check`).
    no_preflight
        Do not run a preflight before the job is submitted (see `shoal preflight`).
    interactive
        Open a shell in the job instead of running the script (see `training shell`).
    jupyter
        With --interactive: open JupyterLab in your browser instead of a shell.
    follow
        Follow the job until it ends; the exit code is its result. Ctrl-C only stops following.
    """
    from shoal.cli.preflight.run import before_submit
    from shoal.cli.shared.findings import warn_of_fetched, warn_on_submit
    from shoal.cli.training.follow import LogOptions, follow_job

    refuse_stray_words(entry)
    flags = flags or JobFlags()
    if interactive:
        if print_spec:
            raise UsageError("--print-spec cannot be combined with --interactive.")
        from shoal.cli.training.attach import shell

        return shell(name, flags=flags, jupyter=jupyter)
    if jupyter:
        raise UsageError("--jupyter needs --interactive.")
    choice = flags.choice()
    spec = check_job(name, entry, flags.wanted() | {"batch": batch, "after": after or []}, choice)
    if print_spec:
        _print_spec(spec, choice)
        return 0
    with connect() as client:
        if session.numbers_name and not replace:
            spec.name = name = free_name(client, name)
        lasting = choice.archive is None and choice.notebook is None
        look = None if no_check else partial(warn_on_submit, spec, lasting=lasting)
        spec.source_id, spec.entry = send_source(client, choice, entry, look=look)
        if choice.is_fetched and not no_check:
            warn_of_fetched(client, spec)
        if quote:
            _print_quote(client, spec)
        with (
            before_submit(client, spec, skip=no_preflight or bool(spec.after)) as found,
            submitting(f"training inspect {name}"),
        ):
            job = create_job(client, spec, preflight=found, replace=replace, reuse=reuse, say=out.info)
        if reuse and job.status.is_terminal:
            out.show(job, lambda: _print_reused(job))
            return 0
        if not follow:
            out.show(job, lambda: _print_submitted(job))
            return 0
        out.info(f"Submitted job '{job.name}' ({_resources_text(job)}).")
        return follow_job(client, job, LogOptions(num_workers=job.nodes * job.accels))


def _print_spec(spec: JobSpec, choice: SourceChoice) -> None:
    if choice.notebook is not None:
        raise UsageError("--print-spec cannot be combined with --notebook: its script is made when it is sent.")
    if choice.file is not None and spec.entry == ["-"]:
        spec.entry = [choice.file.name]
    if spec.entry == ["?"]:
        raise no_script([])
    out.emit(spec.model_dump(mode="json", exclude={"source_id"}))


def _print_quote(client: Client, spec: JobSpec) -> None:
    from shoal.cli.training.quote import fetch_quote, lines

    for line in lines(fetch_quote(client, spec)):
        out.info(line)


def _print_submitted(job: JobView) -> None:
    out.line(job.id)
    out.info(f"Submitted job '{job.name}' ({_resources_text(job)}).")
    out.dim(f"  {out.prog} training logs {job.name} -f")
    out.dim(f"  {out.prog} training inspect {job.name}")


def _print_reused(job: JobView) -> None:
    out.line(job.id)
    out.info(f"Nothing to do: job '{job.name}' has succeeded with the same code, inputs and options.")


def _resources_text(job: JobView) -> str:
    spec = job.spec
    nodes = (
        plural(spec.min_nodes, "node")
        if spec.min_nodes == spec.max_nodes
        else f"{spec.min_nodes} to {spec.max_nodes} nodes"
    )
    return f"{nodes} × {plural(spec.accels, 'accel')}{device_words(spec)}"


def send(
    name: str,
    /,
    *entry: str,
    flags: JobFlags | None = None,
    batch: str | None = None,
    after: Annotated[list[str] | None, many("--after", group=SIZE)] = None,
    step: str | None = None,
    profile: str | None = None,
    reuse: bool = False,
) -> Any:
    """Submit a job as `run` does, without a preflight; return it, or with `reuse` one that has done the same."""
    from shoal.cli.shared.findings import warn_on_submit

    flags = flags or JobFlags()
    choice = flags.choice()
    spec = check_job(name, entry, flags.wanted() | {"batch": batch, "after": after or []}, choice)
    with connect() as client:
        spec.name = free_name(client, name)
        look = partial(warn_on_submit, spec, lasting=True)
        spec.source_id, spec.entry = send_source(client, choice, entry, look=look)
        job = create_job(client, spec, reuse=reuse, say=out.info)
    if job.status.is_terminal:
        out.dim(f"Step {step}: job '{job.name}' has succeeded with the same code, inputs and options.")
    else:
        out.dim(f"Step {step}: submitted job '{job.name}' ({_resources_text(job)}).")
    return job
