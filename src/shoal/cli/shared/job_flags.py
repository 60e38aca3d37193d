"""Options that describe a job's code, data and size, shared by all commands that create jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from shoal.cli.run.app import EMULATE_CUDA
from shoal.cli.shared.output import out
from shoal.cli.shared.parse import DeviceName, device_requirements, parse_nodes, parse_pairs, parse_seconds
from shoal.cli.shared.session import session
from shoal.cli.shared.source import NotebookChoice, SourceChoice
from shoal.core.durations import parse_stall_timeout
from shoal.core.errors import UsageError
from shoal.core.folder_mounts import check_mounts
from shoal.core.money import plain_budget
from shoal.core.names import check_name
from shoal.core.sizes import parse_size

if TYPE_CHECKING:
    from shoal.core.jobs import JobSpec

CODE = Group("Code (default: the current folder)", sort_key=1)
DATA = Group("Data and environment", sort_key=2)
SIZE = Group("Size and limits", sort_key=3)
KEEP = Group("Checkpoints (default: keep all)", sort_key=4)


def many(*names: str, group: Group) -> Parameter:
    """Return the Parameter of an option that can be repeated, with one value each time."""
    return Parameter(name=names, group=group, consume_multiple=False, allow_leading_hyphen=True)


@Parameter(name="*")
@dataclass(slots=True, kw_only=True)
class CodeFlags:
    """Options for the code of a job and its data, as typed.

    Parameters
    ----------
    repository_url
        Git repository to run from; the server clones it.
    repository_revision
        Branch, tag or commit of the repository.
    source_name
        A repository named with `shoal source add`.
    folder
        Folder to run from; .gitignore and .shoalignore are respected.
    archive
        Archive to run from: .zip, .tar, .tar.gz, .tar.bz2 or .tar.xz.
    file
        A single script to run.
    notebook
        Notebook to run as a script: a file, or a URL (Colab, GitHub, gist, Jupyter).
    entry_cell
        Run only these cells of the notebook, in this order: 3, 2-7, 4-, or the name of a tag.
    as_is
        Run the notebook even if some of its cells need a decision.
    token_stdin
        Read an access token for a private notebook URL from stdin.
    dataset
        Dataset to mount at /input/NAME (repeatable).
    env
        Environment variable, as NAME=VALUE (repeatable).
    emulate_cuda
        Run code that asks for CUDA and nccl on the CPU, to debug it.
    """

    repository_url: Annotated[str | None, Parameter(name=("--repository-url", "-u"), group=CODE)] = None
    repository_revision: Annotated[
        str | None, Parameter(name=("--repository-revision", "--source-revision", "-b"), group=CODE)
    ] = None
    source_name: Annotated[str | None, Parameter(name=("--source-name", "--source"), group=CODE)] = None
    folder: Annotated[Path | None, Parameter(name="--dir", group=CODE)] = None
    archive: Annotated[Path | None, Parameter(name="--zip", group=CODE)] = None
    file: Annotated[Path | None, Parameter(group=CODE)] = None
    notebook: Annotated[str | None, Parameter(group=CODE)] = None
    entry_cell: Annotated[str | None, Parameter(group=CODE, allow_leading_hyphen=True)] = None
    as_is: Annotated[bool, Parameter(group=CODE)] = False
    token_stdin: Annotated[bool, Parameter(group=CODE)] = False
    dataset: Annotated[list[str] | None, many("--dataset", "-D", group=DATA)] = None
    env: Annotated[list[str] | None, many("--env", "-E", group=DATA)] = None
    emulate_cuda: Annotated[bool, Parameter(group=DATA)] = False

    def choice(self) -> SourceChoice:
        """Return the place of the job's code; raise UsageError if the options contradict each other."""
        url, name = self.repository_url, self.source_name
        if name and ("://" in name or name.startswith("git@")) and url is None:
            url, name = name, None  # flexai calls both a URL and a registered name the source
        choice = SourceChoice(
            url, name, self.folder, self.archive, self.file, self.repository_revision, self._notebook()
        )
        choice.check()
        return choice

    def _notebook(self) -> NotebookChoice | None:
        if self.notebook is not None:
            return NotebookChoice(self.notebook, self.entry_cell, self.as_is, self.token_stdin)
        for option in ("entry_cell", "as_is", "token_stdin"):
            if getattr(self, option):
                raise UsageError(f"--{option.replace('_', '-')} needs --notebook.")
        return None

    def variables(self) -> dict[str, str]:
        """Return the job's environment variables from --env and --emulate-cuda."""
        emulated = {EMULATE_CUDA: "1"} if self.emulate_cuda else {}
        return parse_pairs(self.env, "--env", "NAME=VALUE") | emulated


@Parameter(name="*")
@dataclass(slots=True, kw_only=True)
class JobFlags(CodeFlags):
    """Options of a job, as typed.

    Parameters
    ----------
    checkpoint
        Checkpoint to mount at /input-checkpoint.
    mount
        Bucket or folder of the machine that the job sees, as s3://BUCKET/PREFIX:/PATH or /FOLDER:/PATH[:ro|rw] (repeatable).
    secret
        Environment variable from a secret, as NAME=SECRET (repeatable).
    allow_torch_change
        Allow requirements.txt to replace the machine's torch (otherwise the job is refused).
    nodes
        Number of nodes, or MIN:MAX for as many as are free (default 1).
    grow
        With MIN:MAX: save and restart with more nodes when they become free.
    accels
        Slots per node, one worker on each (default 1).
    device
        Kind of slots: cpu, gpu (an accelerator of any kind), cuda, rocm, xpu, or any (whichever is free).
        Default auto: accelerators if the pool has any that fit the job, else CPUs.
    gpu
        Model of the GPUs: H100, or H100:8 for 8 per node. All slots of a job are of one model.
    gpu_memory
        Memory that each GPU must have at least (40G).
    mixed_models
        Allow nodes with different models of GPUs if there are not enough of one model; never different kinds.
    label
        Label that the machines must have, as KEY=VALUE (repeatable).
    max_restarts
        Restarts after a failure; the count resets when the job makes progress (default 3).
    priority
        From -100 to 100. Higher priorities run first and can preempt lower ones (default 0).
    time_limit
        Maximum run time (90s, 30m, 8h, 2d). A job with a limit can be backfilled earlier.
    stall_timeout
        Restart the job after this long without output, a metric or a step (30m, or never).
        Default: only when it has certainly hung.
    on_stall
        What to do with a job that hangs: restart it from its newest checkpoint, let it fail, or wait and only report it.
    budget
        Save a checkpoint and stop before the job has used more than this: 5.00 (money) or 2h (slot-hours).
    expected
        Expected duration. Used for start estimates only; never enforced.
    grace
        Time between SIGTERM and SIGKILL when the job is stopped, preempted or at a limit (90s, 5m).
        Default: the server's stop_grace_s.
    memory
        Memory limit of each node (512M, 16G); a job that needs more is ended with that reason.
    cpus
        CPUs that each node may use (4, 0.5).
    disk
        Disk space that each node may use for its own files (100G).
    shm
        Size of /dev/shm on each node (8G), which DataLoader workers use.
    exclude
        Machine that the job must not run on (repeatable).
    prefer
        Machine to use if it has room (repeatable).
    keep_last
        Keep only this many of each node's newest checkpoints.
    keep_best
        Keep the checkpoint with the smallest METRIC (such as eval_loss); -METRIC for the largest.
    launcher
        Program that starts the workers of a node: the agent (direct) or torchrun.
    one_device_per_worker
        Show each worker only its own GPU, as cuda:0, instead of all those of its node.
    engine_option
        Option for the queue of a cluster, as NAME=VALUE (repeatable): partition=long.
    allow_cpu
        Train on the CPU if torch cannot use the slot's GPU (default: fail with the reason).
    """

    checkpoint: Annotated[str | None, Parameter(name=("--checkpoint", "-C"), group=DATA)] = None
    mount: Annotated[list[str] | None, many("--mount", group=DATA)] = None
    secret: Annotated[list[str] | None, many("--secret", "-S", group=DATA)] = None
    allow_torch_change: Annotated[bool, Parameter(group=DATA)] = False
    nodes: Annotated[str, Parameter(name=("--nodes", "-n"), group=SIZE)] = "1"
    grow: Annotated[bool, Parameter(group=SIZE)] = False
    accels: Annotated[int, Parameter(name=("--accels", "-a"), group=SIZE)] = 1
    device: Annotated[DeviceName, Parameter(group=SIZE)] = "auto"
    gpu: Annotated[str | None, Parameter(group=SIZE)] = None
    gpu_memory: Annotated[str | None, Parameter(group=SIZE)] = None
    mixed_models: Annotated[bool, Parameter(group=SIZE)] = False
    label: Annotated[list[str] | None, many("--label", group=SIZE)] = None
    max_restarts: Annotated[int, Parameter(group=SIZE)] = 3
    priority: Annotated[int, Parameter(group=SIZE, allow_leading_hyphen=True)] = 0
    time_limit: Annotated[str | None, Parameter(group=SIZE)] = None
    stall_timeout: Annotated[str | None, Parameter(group=SIZE)] = None
    on_stall: Annotated[Literal["restart", "fail", "wait"], Parameter(group=SIZE)] = "restart"
    budget: Annotated[str | None, Parameter(group=SIZE)] = None
    expected: Annotated[str | None, Parameter(group=SIZE)] = None
    grace: Annotated[str | None, Parameter(group=SIZE)] = None
    memory: Annotated[str | None, Parameter(group=SIZE)] = None
    cpus: Annotated[float | None, Parameter(group=SIZE)] = None
    disk: Annotated[str | None, Parameter(group=SIZE)] = None
    shm: Annotated[str | None, Parameter(group=SIZE)] = None
    exclude: Annotated[list[str] | None, many("--exclude", group=SIZE)] = None
    prefer: Annotated[list[str] | None, many("--prefer", group=SIZE)] = None
    launcher: Annotated[Literal["direct", "torchrun"], Parameter(group=SIZE)] = "direct"
    one_device_per_worker: Annotated[bool, Parameter(group=SIZE)] = False
    engine_option: Annotated[list[str] | None, many("--engine-option", group=SIZE)] = None
    allow_cpu: Annotated[bool, Parameter(group=SIZE)] = False
    keep_last: Annotated[int | None, Parameter(group=KEEP)] = None
    keep_best: Annotated[str | None, Parameter(group=KEEP, allow_leading_hyphen=True)] = None

    def wanted(self) -> dict[str, Any]:
        """Return the fields of a JobSpec that these options set."""
        low, high = parse_nodes(self.nodes)
        check_mounts(self.mount or [])
        if self.grow and low == high:
            raise UsageError("--grow needs a range of nodes.", hint=f"--nodes {low}:{2 * low} --grow")
        return {
            "datasets": self.dataset or [],
            "mounts": self.mount or [],
            "checkpoint": self.checkpoint,
            "min_nodes": low,
            "max_nodes": high,
            "grow": self.grow,
            **device_requirements(self.accels, self.device, self.gpu, self.gpu_memory, self.label),
            "mixed_models": self.mixed_models,
            "env": self.variables(),
            "secrets": parse_pairs(self.secret, "--secret", "NAME=SECRET"),
            "max_restarts": self.max_restarts,
            "priority": self.priority,
            "time_limit_s": parse_seconds(self.time_limit, "--time-limit"),
            "stall_timeout_s": parse_stall_timeout(self.stall_timeout, "--stall-timeout"),
            "on_stall": self.on_stall,
            "budget": plain_budget(self.budget) if self.budget else None,
            "expected_s": parse_seconds(self.expected, "--expected"),
            "grace_s": parse_seconds(self.grace, "--grace"),
            "one_device_per_worker": self.one_device_per_worker,
            "engine_options": parse_pairs(self.engine_option, "--engine-option", "NAME=VALUE"),
            "memory": _size(self.memory, "--memory"),
            "cpus": self.cpus,
            "disk": _size(self.disk, "--disk"),
            "shm": _size(self.shm, "--shm"),
            "exclude": self.exclude or [],
            "prefer": self.prefer or [],
            "keep_last": self.keep_last,
            "keep_best": self.keep_best,
            "launcher": self.launcher,
            "allow_cpu": self.allow_cpu,
            "allow_torch_change": self.allow_torch_change,
        }


def _size(text: str | None, option: str) -> str | None:
    """Return a size as typed, once it is known to be one."""
    if text is not None:
        parse_size(text, option)
    return text


def check_job(
    name: str, entry: Sequence[str], wanted: dict[str, Any], choice: SourceChoice, *, command: str = "training run"
) -> JobSpec:
    """Build the JobSpec and raise UsageError for every mistake that can be found before anything is sent."""
    from shoal.core.jobs import JobSpec

    check_entry_name(name, entry, command)
    for env_name in wanted["env"].keys() & wanted["secrets"].keys():
        raise UsageError(f"{env_name} is given by both --env and --secret.")
    placeholder = entry or (["-"] if choice.file or choice.notebook else ["?"])
    return JobSpec(name=name, source_id="", entry=list(placeholder), **wanted)


def check_entry_name(name: str, entry: Sequence[str], command: str) -> None:
    what = command.split()[0].replace("training", "job")
    if not entry and name.endswith(".py"):
        raise UsageError(f"The {what} needs a name, before `--`.", hint=f"{out.prog} {command} NAME -- {name}")
    check_name(name, f"{what} name")


def refuse_stray_words(entry: Sequence[str], *, command: str = "training run") -> None:
    """Raise UsageError if anything but the name is before `--`, such as a name with a space or a value without option."""
    if session.after_dashes is not None and len(entry) > session.after_dashes:
        stray = entry[: len(entry) - session.after_dashes]
        raise UsageError(
            f"Unexpected argument {' '.join(map(repr, stray))}. Script arguments go after `--`.",
            hint=f"{out.prog} {command} NAME [OPTIONS] -- {' '.join(entry[len(stray) :]) or 'train.py'}",
        )


@contextmanager
def submitting(look: str) -> Iterator[None]:
    """Warn on ^C during a submit request that the job may exist; `look` is the command that shows whether it does."""
    try:
        yield
    except KeyboardInterrupt:
        out.warn(f"Interrupted while submitting; it may have been created. Check with: {out.prog} {look}")
        raise
