"""`shoal training run`: pack the code, submit the job, and follow it where asked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from shoal.cli._format import plural
from shoal.cli._output import out
from shoal.cli._parse import parse_nodes, parse_pairs, parse_seconds
from shoal.cli._session import connect, session
from shoal.cli._source import SourceChoice, send_source
from shoal.cli.run import EMULATE_CUDA
from shoal.core.errors import UsageError
from shoal.core.names import check_name

if TYPE_CHECKING:
    from shoal.core.jobs import JobSpec, JobView

CODE = Group("Code (default: the present folder)", sort_key=1)
DATA = Group("Data and environment", sort_key=2)
SIZE = Group("Size and limits", sort_key=3)
KEEP = Group("Checkpoints (default: all stay)", sort_key=4)


def _many(*names: str, group: Group) -> Parameter:
    return Parameter(name=names, group=group, consume_multiple=False, allow_leading_hyphen=True)


def run(
    name: str,
    /,
    *entry: str,
    repository_url: Annotated[str | None, Parameter(name=("--repository-url", "-u"), group=CODE)] = None,
    repository_revision: Annotated[
        str | None, Parameter(name=("--repository-revision", "--source-revision", "-b"), group=CODE)
    ] = None,
    source_name: Annotated[str | None, Parameter(name=("--source-name", "--source"), group=CODE)] = None,
    folder: Annotated[Path | None, Parameter(name="--dir", group=CODE)] = None,
    archive: Annotated[Path | None, Parameter(name="--zip", group=CODE)] = None,
    file: Annotated[Path | None, Parameter(group=CODE)] = None,
    dataset: Annotated[list[str] | None, _many("--dataset", "-D", group=DATA)] = None,
    checkpoint: Annotated[str | None, Parameter(name=("--checkpoint", "-C"), group=DATA)] = None,
    env: Annotated[list[str] | None, _many("--env", "-E", group=DATA)] = None,
    secret: Annotated[list[str] | None, _many("--secret", "-S", group=DATA)] = None,
    emulate_cuda: Annotated[bool, Parameter(group=DATA)] = False,
    nodes: Annotated[str, Parameter(name=("--nodes", "-n"), group=SIZE)] = "1",
    accels: Annotated[int, Parameter(name=("--accels", "-a"), group=SIZE)] = 1,
    max_restarts: Annotated[int, Parameter(group=SIZE)] = 3,
    priority: Annotated[int, Parameter(group=SIZE, allow_leading_hyphen=True)] = 0,
    time_limit: Annotated[str | None, Parameter(group=SIZE)] = None,
    expected: Annotated[str | None, Parameter(group=SIZE)] = None,
    batch: Annotated[str | None, Parameter(group=SIZE)] = None,
    exclude: Annotated[list[str] | None, _many("--exclude", group=SIZE)] = None,
    prefer: Annotated[list[str] | None, _many("--prefer", group=SIZE)] = None,
    keep_last: Annotated[int | None, Parameter(group=KEEP)] = None,
    keep_best: Annotated[str | None, Parameter(group=KEEP, allow_leading_hyphen=True)] = None,
    launcher: Annotated[Literal["direct", "torchrun"], Parameter(group=SIZE)] = "direct",
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
      shoal training run from-git -u https://github.com/me/exp -b v1.2 -- train.py
      shoal training run tracked --env WANDB_PROJECT=exp \\
          --secret WANDB_API_KEY=wandb --dataset wikitext \\
          -- train.py --data /input/wikitext

    Parameters
    ----------
    name
        What to call the job; unique in its workspace.
    entry
        After `--`: the script, relative to the code's root, and its arguments.
    repository_url
        Git repository to run from; the server clones it.
    repository_revision
        Branch, tag or commit of the repository.
    source_name
        A repository named with `shoal source add`.
    folder
        Folder to run from; .gitignore and .shoalignore are respected.
    archive
        Archive to run from: .zip, .tar, .tar.gz.
    file
        A single script to run.
    dataset
        Dataset to mount at /input/NAME (repeatable).
    checkpoint
        Checkpoint to mount at /input-checkpoint.
    env
        Environment variable, as NAME=VALUE (repeatable).
    secret
        Environment variable from a secret, as NAME=SECRET (repeatable).
    emulate_cuda
        Run code that asks for CUDA and nccl on the CPU, to debug it.
    nodes
        Number of nodes, or MIN:MAX for as many as there are (default 1).
    accels
        Slots per node, one worker on each (default 1).
    max_restarts
        New attempts after a failure; counts anew on progress (default 3).
    priority
        From -100 to 100; higher runs first, and lower ones make way (default 0).
    time_limit
        Stop it after this long: 90s, 30m, 8h, 2d. It may start sooner for it.
    expected
        How long it is likely to run; foretells starts, and stops nothing.
    batch
        Of jobs with one batch name, the longest expected starts first.
    exclude
        Machine it must not run on (repeatable).
    prefer
        Machine to run on where it has room (repeatable).
    keep_last
        Keep only this many of each node's newest checkpoints.
    keep_best
        Keep the one with the smallest METRIC (eval_loss …); -METRIC for the largest.
    launcher
        Who starts the workers of a node: the agent (direct) or torchrun.
    follow
        Watch it until it ends, and exit as it does. Ctrl-C leaves it running.
    """
    from shoal.cli._follow import LogOptions, follow_job

    _refuse_stray_words(entry)
    choice = _choice(repository_url, source_name, folder, archive, file, repository_revision)
    low, high = parse_nodes(nodes)
    wanted = {
        "datasets": dataset or [],
        "checkpoint": checkpoint,
        "min_nodes": low,
        "max_nodes": high,
        "accels": accels,
        "env": parse_pairs(env, "--env", "NAME=VALUE") | ({EMULATE_CUDA: "1"} if emulate_cuda else {}),
        "secrets": parse_pairs(secret, "--secret", "NAME=SECRET"),
        "max_restarts": max_restarts,
        "priority": priority,
        "time_limit_s": parse_seconds(time_limit, "--time-limit"),
        "expected_s": parse_seconds(expected, "--expected"),
        "batch": batch,
        "exclude": exclude or [],
        "prefer": prefer or [],
        "keep_last": keep_last,
        "keep_best": keep_best,
        "launcher": launcher,
    }
    spec = _check(name, entry, wanted, choice)
    with connect() as client:
        spec.source_id, spec.entry = send_source(client, choice, entry)
        try:
            job = client.jobs.create(spec)
        except KeyboardInterrupt:
            out.warn(f"Interrupted while submitting. Whether it was heard: {out.prog} training inspect {name}")
            raise
        if not follow:
            out.show(job, lambda: _tell_submitted(job))
            return 0
        out.say(f"Submitted job '{job.name}' ({_asked_for(job)}).")
        return follow_job(client, job, LogOptions(num_workers=job.nodes * job.accels))


def _refuse_stray_words(entry: tuple[str, ...]) -> None:
    """Before `--` stands the job's name and nothing else; more is a name with a space, or a forgotten option."""
    if session.after_dashes is not None and len(entry) > session.after_dashes:
        stray = entry[: len(entry) - session.after_dashes]
        raise UsageError(
            f"Before `--` there is room for one name; what is {' '.join(map(repr, stray))}?",
            hint=f"{out.prog} training run NAME [OPTIONS] -- {' '.join(entry[len(stray) :]) or 'train.py'}",
        )


def _choice(
    url: str | None, name: str | None, folder: Path | None, archive: Path | None, file: Path | None, rev: str | None
) -> SourceChoice:
    if name and ("://" in name or name.startswith("git@")) and url is None:
        url, name = name, None  # the older dialect calls both of them the source
    choice = SourceChoice(url, name, folder, archive, file, rev)
    choice.check()
    return choice


def _check(name: str, entry: tuple[str, ...], wanted: dict[str, Any], choice: SourceChoice) -> JobSpec:
    """Everything that can be seen wrong from here is, before a byte is sent."""
    from shoal.core.jobs import JobSpec

    if not entry and name.endswith(".py"):
        raise UsageError("The job needs a name, before `--`.", hint=f"{out.prog} training run NAME -- {name}")
    check_name(name, "job name")
    for env_name in wanted["env"].keys() & wanted["secrets"].keys():
        raise UsageError(f"{env_name} is given by both --env and --secret.")
    placeholder = entry or (["-"] if choice.file else ["?"])
    return JobSpec(name=name, source_id="", entry=list(placeholder), **wanted)


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
    return f"{nodes} × {plural(spec.accels, 'accel')}"
