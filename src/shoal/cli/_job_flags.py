"""The options that say what a job runs, on which data and on how much: the same wherever a job is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from shoal.cli._output import out
from shoal.cli._parse import DeviceName, parse_nodes, parse_pairs, parse_seconds
from shoal.cli._session import session
from shoal.cli._source import NotebookChoice, SourceChoice
from shoal.cli.run import EMULATE_CUDA
from shoal.core.durations import parse_stall_timeout
from shoal.core.errors import UsageError
from shoal.core.money import plain_budget
from shoal.core.names import check_name

if TYPE_CHECKING:
    from shoal.core.jobs import JobSpec

CODE = Group("Code (default: the present folder)", sort_key=1)
DATA = Group("Data and environment", sort_key=2)
SIZE = Group("Size and limits", sort_key=3)
KEEP = Group("Checkpoints (default: all stay)", sort_key=4)


def many(*names: str, group: Group) -> Parameter:
    """An option that may be given several times, one value each."""
    return Parameter(name=names, group=group, consume_multiple=False, allow_leading_hyphen=True)


@Parameter(name="*")
@dataclass(slots=True, kw_only=True)
class CodeFlags:
    """What runs, on which data: as typed.

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
        Archive to run from: .zip, .tar, .tar.gz.
    file
        A single script to run.
    notebook
        Notebook to run as a script: a file, or a URL (Colab, GitHub, gist, Jupyter).
    entry_cell
        Only these of its cells, in this order: 3, 2-7, 4-, or a tag's name.
    as_is
        Run it though some of its cells need a decision.
    token_stdin
        For a URL that is not public: read a token for it from stdin.
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
        """Where the code is."""
        url, name = self.repository_url, self.source_name
        if name and ("://" in name or name.startswith("git@")) and url is None:
            url, name = name, None  # the older dialect calls both of them the source
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
                raise UsageError(f"--{option.replace('_', '-')} goes with --notebook.")
        return None

    def variables(self) -> dict[str, str]:
        """Of the environment."""
        emulated = {EMULATE_CUDA: "1"} if self.emulate_cuda else {}
        return parse_pairs(self.env, "--env", "NAME=VALUE") | emulated


@Parameter(name="*")
@dataclass(slots=True, kw_only=True)
class JobFlags(CodeFlags):
    """As typed.

    Parameters
    ----------
    checkpoint
        Checkpoint to mount at /input-checkpoint.
    secret
        Environment variable from a secret, as NAME=SECRET (repeatable).
    allow_torch_change
        Let requirements.txt replace the machine's torch (refused otherwise).
    nodes
        Number of nodes, or MIN:MAX for as many as there are (default 1).
    grow
        With MIN:MAX: save and go on with more nodes when there is room for them.
    accels
        Slots per node, one worker on each (default 1).
    device
        Kind of slots: cpu, cuda, rocm, xpu; any: whichever are free. Default auto: accelerators where the pool has any that could hold the job, else CPUs.
    max_restarts
        New attempts after a failure; counts anew on progress (default 3).
    priority
        From -100 to 100; higher runs first, and lower ones make way (default 0).
    time_limit
        Stop it after this long: 90s, 30m, 8h, 2d. It may start sooner for it.
    stall_timeout
        Restart it after this long without a line, metric or step: 30m, or never. Default: only when it surely hangs.
    budget
        Stop it, with a checkpoint, before it has used more: 5.00 (money) or 2h (of slots).
    expected
        How long it is likely to run; foretells starts, and stops nothing.
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
    allow_cpu
        Train on the CPU if torch cannot use the slot's GPU (default: fail with the reason).
    """

    checkpoint: Annotated[str | None, Parameter(name=("--checkpoint", "-C"), group=DATA)] = None
    secret: Annotated[list[str] | None, many("--secret", "-S", group=DATA)] = None
    allow_torch_change: Annotated[bool, Parameter(group=DATA)] = False
    nodes: Annotated[str, Parameter(name=("--nodes", "-n"), group=SIZE)] = "1"
    grow: Annotated[bool, Parameter(group=SIZE)] = False
    accels: Annotated[int, Parameter(name=("--accels", "-a"), group=SIZE)] = 1
    device: Annotated[DeviceName, Parameter(group=SIZE)] = "auto"
    max_restarts: Annotated[int, Parameter(group=SIZE)] = 3
    priority: Annotated[int, Parameter(group=SIZE, allow_leading_hyphen=True)] = 0
    time_limit: Annotated[str | None, Parameter(group=SIZE)] = None
    stall_timeout: Annotated[str | None, Parameter(group=SIZE)] = None
    budget: Annotated[str | None, Parameter(group=SIZE)] = None
    expected: Annotated[str | None, Parameter(group=SIZE)] = None
    exclude: Annotated[list[str] | None, many("--exclude", group=SIZE)] = None
    prefer: Annotated[list[str] | None, many("--prefer", group=SIZE)] = None
    launcher: Annotated[Literal["direct", "torchrun"], Parameter(group=SIZE)] = "direct"
    allow_cpu: Annotated[bool, Parameter(group=SIZE)] = False
    keep_last: Annotated[int | None, Parameter(group=KEEP)] = None
    keep_best: Annotated[str | None, Parameter(group=KEEP, allow_leading_hyphen=True)] = None

    def wanted(self) -> dict[str, Any]:
        """Fields of a JobSpec."""
        low, high = parse_nodes(self.nodes)
        if self.grow and low == high:
            raise UsageError("--grow needs a range of nodes.", hint=f"--nodes {low}:{2 * low} --grow")
        return {
            "datasets": self.dataset or [],
            "checkpoint": self.checkpoint,
            "min_nodes": low,
            "max_nodes": high,
            "grow": self.grow,
            "accels": self.accels,
            "device": self.device,
            "env": self.variables(),
            "secrets": parse_pairs(self.secret, "--secret", "NAME=SECRET"),
            "max_restarts": self.max_restarts,
            "priority": self.priority,
            "time_limit_s": parse_seconds(self.time_limit, "--time-limit"),
            "stall_timeout_s": parse_stall_timeout(self.stall_timeout, "--stall-timeout"),
            "budget": plain_budget(self.budget) if self.budget else None,
            "expected_s": parse_seconds(self.expected, "--expected"),
            "exclude": self.exclude or [],
            "prefer": self.prefer or [],
            "keep_last": self.keep_last,
            "keep_best": self.keep_best,
            "launcher": self.launcher,
            "allow_cpu": self.allow_cpu,
            "allow_torch_change": self.allow_torch_change,
        }


def check_job(
    name: str, entry: Sequence[str], wanted: dict[str, Any], choice: SourceChoice, *, command: str = "training run"
) -> JobSpec:
    """Everything that can be seen wrong from here is, before a byte is sent."""
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
    """Before `--` stands the name and nothing else; more is a name with a space, or a forgotten option."""
    if session.after_dashes is not None and len(entry) > session.after_dashes:
        stray = entry[: len(entry) - session.after_dashes]
        raise UsageError(
            f"Before `--` there is room for one name; what is {' '.join(map(repr, stray))}?",
            hint=f"{out.prog} {command} NAME [OPTIONS] -- {' '.join(entry[len(stray) :]) or 'train.py'}",
        )


@contextmanager
def submitting(look: str) -> Iterator[None]:
    """While the server is told: after ^C nobody here knows whether it has heard, and `look` finds out."""
    try:
        yield
    except KeyboardInterrupt:
        out.warn(f"Interrupted while submitting. Whether it was heard: {out.prog} {look}")
        raise
