"""The project file `shoal.yaml`: the options of a job, kept beside its code, with profiles that change some of them.

Keys are the options of `shoal training run`. Values are checked here; `overlay` combines the layers (file, profile, options).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from shoal.core.after import After
from shoal.core.durations import parse_duration, parse_stall_timeout
from shoal.core.errors import UsageError
from shoal.core.gpu_models import check_labels, parse_gpu, parse_memory
from shoal.core.jobs import Device, check_env
from shoal.core.money import plain_budget
from shoal.core.names import MAX_NAME, check_name
from shoal.core.schema import Schema
from shoal.core.sizes import parse_size

FILE_NAME = "shoal.yaml"
OPTION_OF = {
    "datasets": "dataset",
    "mounts": "mount",
    "secrets": "secret",
    "labels": "label",
    "engine_options": "engine_option",
}
"""Key of the file → option of `training run`, where the two differ in more than `_` and `-`."""
HABITS = {
    "entry": "run",
    "script": "run",
    "command": "run",
    "cmd": "run",
    "arguments": "args",
    "gpus": "accels",
    "num_gpus": "accels",
    "nproc": "accels",
    "nnodes": "nodes",
    "num_nodes": "nodes",
    "environment": "env",
    "timeout": "time_limit",
    "profile": "profiles",
}
"""Keys of other programs' files → ours, for the suggestion after an unknown key."""
_NODES = re.compile(r"\d+(:\d+)?")


def _as_text(value: Any) -> Any:
    """Return a number as text; refuse booleans, whose spelling YAML does not keep."""
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is a YAML boolean, and text is needed here: put it in quotes")
    return str(value) if isinstance(value, int | float) else value


Text = Annotated[str, BeforeValidator(_as_text, json_schema_input_type=str | float)]
"""Text that may be written as a number."""
Argument = Annotated[bool, Field(strict=True)] | Text | list[Text]


class ProjectJob(Schema):
    """Options of a job in a project file. All are optional."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    name: Text | None = None
    """Name of the job (default: the folder's name). If it is taken, the job is numbered: name-2, name-3, …"""
    run: str | None = Field(default=None, examples=["train.py", "-m mypackage.train"])
    """The script, relative to the folder, and optionally arguments, as they are typed after `--`."""
    args: dict[str, Argument | None] | list[Text] | str | None = None
    """Arguments of the script: `{lr: 3e-4, amp: true}` is `--lr 3e-4 --amp`; or a list; or one line of text."""
    batch: Text | None = None
    """Name of a batch. Among jobs of the same batch, the one with the longest `expected` starts first."""
    after: list[str] | None = Field(default=None, examples=[["preprocess"], ["big:ended"]])
    """Jobs that must have succeeded before this one starts; `NAME:ended`: ended in any way. Their newest checkpoints are at /input/NAME."""
    datasets: list[str] | None = None
    """Datasets to mount at /input/NAME."""
    mounts: list[str] | None = Field(default=None, examples=[["s3://bucket/images:/data"]])
    """Buckets (read-only) and folders of the machine that the job sees: `s3://bucket/prefix:/data`, `/folder:/data[:ro|rw]`."""
    checkpoint: str | None = None
    """Checkpoint to mount at /input-checkpoint."""
    env: dict[str, Text] | None = None
    """Environment variables. They are stored as plain text: use `secrets` for passwords and keys."""
    secrets: dict[str, str] | None = None
    """Environment variable → name of the secret that holds its value (see `shoal secret`)."""
    emulate_cuda: bool | None = None
    """Run code that asks for CUDA and nccl on the CPU, to debug it."""
    allow_torch_change: bool | None = None
    """Allow requirements.txt to replace the machine's torch."""
    nodes: Text | None = Field(default=None, examples=[2, "1:4"])
    """Number of nodes, or MIN:MAX for as many as are free (default 1)."""
    grow: bool | None = None
    """Save and restart with more nodes when they become free; needs `nodes: MIN:MAX`."""
    accels: int | None = Field(default=None, ge=1, le=1_024)
    """Slots per node, one worker on each (default 1)."""
    device: Device | None = None
    """Kind of slots (default auto: accelerators if the pool has any that fit the job, else CPUs)."""
    gpu: Text | None = Field(default=None, examples=["H100", "H100:8"])
    """Model of the GPUs: H100, or H100:8 for 8 per node."""
    gpu_memory: Text | None = Field(default=None, examples=["40G"])
    """Memory that each GPU must have at least."""
    labels: dict[str, Text] | None = None
    """Labels that the machines must have."""
    max_restarts: int | None = Field(default=None, ge=0, le=1_000)
    """Restarts after a failure; the count resets when the job makes progress (default 3)."""
    priority: int | None = Field(default=None, ge=-100, le=100)
    """Priority, from -100 to 100. Higher ones run first and can preempt lower ones (default 0)."""
    time_limit: Text | None = Field(default=None, examples=["8h"])
    """Maximum run time: 90s, 30m, 8h, 2d."""
    stall_timeout: Text | None = Field(default=None, examples=["30m", "never"])
    """Restart the job after this long without output, a metric or a step; or never."""
    on_stall: Literal["restart", "fail", "wait"] | None = None
    """Reaction to a job that hangs: restart it (the default), let it fail, or wait and only report it."""
    budget: Text | None = Field(default=None, examples=["5.00", "2h"])
    """Save a checkpoint and stop before the job has used more than this: money, or slot time."""
    expected: Text | None = Field(default=None, examples=["3h"])
    """Expected duration. Used for start estimates only; never enforced."""
    grace: Text | None = Field(default=None, examples=["5m"])
    """Time between SIGTERM and SIGKILL when the job is stopped, preempted or at a limit."""
    memory: Text | None = Field(default=None, examples=["16G"])
    """Memory limit of each node."""
    cpus: float | None = Field(default=None, gt=0, le=4096)
    """CPUs that each node may use."""
    disk: Text | None = Field(default=None, examples=["100G"])
    """Disk space that each node may use for its own files."""
    shm: Text | None = Field(default=None, examples=["8G"])
    """Size of /dev/shm on each node, which DataLoader workers use."""
    exclude: list[str] | None = None
    """Machines that the job must not run on."""
    prefer: list[str] | None = None
    """Machines to use if they have room."""
    mixed_models: bool | None = None
    """Allow nodes with different models of GPUs if there are not enough of one model; never different kinds."""
    launcher: Literal["direct", "torchrun"] | None = None
    """Program that starts the workers of a node: the agent (direct, the default) or torchrun."""
    one_device_per_worker: bool | None = None
    """Show each worker only its own GPU, as cuda:0, instead of all those of its node."""
    engine_options: dict[str, Text] | None = Field(default=None, examples=[{"partition": "long"}])
    """Options for the queue of a cluster."""
    allow_cpu: bool | None = None
    """Train on the CPU if torch cannot use the slot's GPU (default: fail with the reason)."""
    keep_last: int | None = Field(default=None, ge=1)
    """Keep only this many of each node's newest checkpoints."""
    keep_best: str | None = None
    """Keep the checkpoint with the smallest value of this metric; -METRIC for the largest."""

    @field_validator("name", "batch")
    @classmethod
    def _names(cls, value: str | None, info: ValidationInfo) -> str | None:
        return _checked(value, str(info.field_name), lambda text: check_name(text, f"{info.field_name}"))

    @field_validator("after")
    @classmethod
    def _after(cls, value: list[str] | None) -> list[str] | None:
        for text in value or ():
            After.parse(text)
        return value

    @field_validator("run")
    @classmethod
    def _run(cls, value: str | None) -> str | None:
        if value is not None and not shlex.split(value):
            raise ValueError("no script is given, such as train.py")
        return value

    @field_validator("args")
    @classmethod
    def _args(cls, value: Any) -> Any:
        if isinstance(value, str):
            shlex.split(value)
        return value

    @field_validator("env", "secrets")
    @classmethod
    def _env(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        return None if value is None else check_env(value)

    @field_validator("labels")
    @classmethod
    def _labels(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        return None if value is None else check_labels(value)

    @field_validator("nodes")
    @classmethod
    def _nodes(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if not _NODES.fullmatch(value):
            raise ValueError(f"{value!r} is not a number of nodes, such as 2 or 1:4")
        low, _, high = value.partition(":")
        if not 1 <= int(low) <= int(high or low):
            raise ValueError(f"{value!r} is not a range of nodes from 1 on, such as 1:4")
        return value

    @field_validator(
        "time_limit", "expected", "grace", "stall_timeout", "memory", "disk", "shm", "gpu", "gpu_memory", "budget"
    )
    @classmethod
    def _amounts(cls, value: str | None, info: ValidationInfo) -> str | None:
        key = str(info.field_name)
        return _checked(value, key, _PARSERS[key])

    def given(self) -> dict[str, Any]:
        """Return the keys that have a value."""
        found = self.model_dump(exclude_none=True)
        found.pop("profiles", None)
        found.pop("pipeline", None)
        return found


class ProjectFile(ProjectJob):
    """A project file: the options of its jobs, and profiles that change some of them."""

    profiles: dict[str, ProjectJob] | None = None
    """Named sets of options that are laid over those above when `--profile NAME` is given."""

    pipeline: dict[str, ProjectJob] | None = Field(
        default=None, examples=[{"prepare": {"run": "prepare.py"}, "train": {"run": "train.py", "after": ["prepare"]}}]
    )
    """Steps, each a job: options that are laid over those above. `after` of a step names other steps; `shoal training pipeline`
    submits them all."""

    @field_validator("pipeline")
    @classmethod
    def _pipeline(cls, value: dict[str, ProjectJob] | None, info: ValidationInfo) -> dict[str, ProjectJob] | None:
        for name, step in (value or {}).items():
            _checked(name, "step", lambda text: check_name(text, "step"))
            if info.data.get("run") is None and step.run is None:
                raise ValueError(f"step '{name}' has no script: give it a `run`")
        _ordered(value or {})
        return value

    def options(self, profile: str | None = None, step: str | None = None) -> dict[str, Any]:
        """Return the keys that have a value, with those of the profile and then of the step laid over them. Both must exist."""
        below = self.given()
        if profile is not None:
            below = overlay(below, (self.profiles or {})[profile].given())
        return below if step is None else overlay(below, (self.pipeline or {})[step].given())

    def steps(self) -> dict[str, list[After]]:
        """Return the steps of the pipeline with what each starts after, earlier ones first."""
        return _ordered(self.pipeline or {})


def _ordered(steps: Mapping[str, ProjectJob]) -> dict[str, list[After]]:
    """Return step → what it starts after, earlier ones first; raise ValueError if steps wait for each other."""
    left = {name: [After.parse(text) for text in step.after or ()] for name, step in steps.items()}
    ordered: dict[str, list[After]] = {}
    while left:
        ready = [name for name, after in left.items() if not any(one.job in left for one in after)]
        if not ready:
            raise ValueError(f"the steps {', '.join(left)} wait for each other")
        ordered |= {name: left.pop(name) for name in ready}
    return ordered


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of the project file, by which editors complete and check it."""
    made = ProjectFile.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": FILE_NAME}


def overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options `below` with those `above` laid over them.

    Mappings (`env`, `secrets`, `labels`, `engine_options`, `args`) are combined by name; other values are replaced. Options below that the ones
    above contradict are left out: `device: cpu` removes a GPU model, `accels: 2` the number in `gpu: H100:8`.
    """
    below = dict(below)
    for one, other in (("env", "secrets"), ("secrets", "env")):
        if one in below and other in above:
            below[one] = {name: value for name, value in below[one].items() if name not in above[other]}
    if above.get("device") == "cpu":
        below = {key: value for key, value in below.items() if key not in ("gpu", "gpu_memory")}
    if ("gpu" in above or "gpu_memory" in above) and below.get("device") == "cpu":
        del below["device"]
    if "accels" in above and "gpu" in below:
        below["gpu"] = below["gpu"].partition(":")[0]
    if ":" in above.get("gpu", ""):
        below.pop("accels", None)
    if "nodes" in above and ":" not in above["nodes"]:
        below.pop("grow", None)
    if "run" in above and below.get("run") != above["run"]:
        below.pop("args", None)  # they are another script's
    combined = {
        key: {**below[key], **value}
        for key, value in above.items()
        if isinstance(value, Mapping) and isinstance(below.get(key), Mapping)
    }
    return {**below, **above, **combined}


def command_words(options: Mapping[str, Any]) -> list[str]:
    """Return script and arguments of `run` and `args` as the words of a command line; empty without `run`."""
    return [*shlex.split(options["run"]), *argument_words(options.get("args"))] if "run" in options else []


def argument_words(args: Any) -> list[str]:
    """Return the value of `args` as words of a command line."""
    if not isinstance(args, Mapping):
        return shlex.split(args) if isinstance(args, str) else list(args or ())
    words: list[str] = []
    for name, value in args.items():
        if value is None or value is False:
            continue
        option = name if name.startswith("-") else f"--{name}"
        words += [option, *([] if value is True else value if isinstance(value, list) else [value])]
    return words


def usable_name(text: str) -> str:
    """Return a job name made of any text, such as a folder's name."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("._-")
    return plain[:MAX_NAME] or "project"


def _checked(value: str | None, key: str, parse: Callable[[str], object]) -> str | None:
    """Return the value if it can be parsed; raise ValueError with the parser's message about the key otherwise."""
    if value is None:
        return None
    try:
        parse(value)
    except UsageError as error:
        hint = f" {error.hint}" if error.hint else ""
        text = f"{error.message}{hint}".replace(f"--{key.replace('_', '-')} ", f"{key} ")
        raise ValueError(text.rstrip(".")) from None
    return value


_PARSERS: dict[str, Callable[[str], object]] = {
    "time_limit": lambda text: parse_duration(text, "time_limit"),
    "expected": lambda text: parse_duration(text, "expected"),
    "grace": lambda text: parse_duration(text, "grace"),
    "stall_timeout": lambda text: parse_stall_timeout(text, "stall_timeout"),
    "memory": lambda text: parse_size(text, "memory"),
    "disk": lambda text: parse_size(text, "disk"),
    "shm": lambda text: parse_size(text, "shm"),
    "gpu": parse_gpu,
    "gpu_memory": parse_memory,
    "budget": plain_budget,
}
