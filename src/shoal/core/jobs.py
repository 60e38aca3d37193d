"""Jobs on the wire: what a person asks for (JobSpec) and what the server tells (JobView and below)."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from shoal.core.bugs import BugView
from shoal.core.errors import UsageError
from shoal.core.money import plain_budget
from shoal.core.names import check_name
from shoal.core.preflight import PreflightReport
from shoal.core.schema import Schema, Utc, View
from shoal.core.states import AttemptState, JobState, NodeState

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RESERVED_ENV = frozenset(
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT SHOAL_JOB_ID SHOAL_ATTEMPT "
    "SHOAL_RANK SHOAL_RESUME_FROM SHOAL_SPOOL SHOAL_SWARM SHOAL_URL SHOAL_WORKSPACE SHOAL_JOB_TOKEN SHOAL_DEVICE "
    "SHOAL_ALLOW_CPU".split()
)
Device = Literal["auto", "any", "cpu", "cuda", "rocm", "xpu"]
"""Kind of slots a job asks for. auto: accelerators where the pool has any that could hold it, else CPUs; any: whichever
are free, accelerators first. All slots of a job are of one kind."""
MAX_TIME_LIMIT = timedelta(days=365)


def _budget(text: str) -> str:
    try:
        return plain_budget(text)
    except UsageError as error:
        raise ValueError(error.message) from None


BudgetText = Annotated[str, Field(max_length=40), AfterValidator(_budget)]


def check_env(value: dict[str, str]) -> dict[str, str]:
    """Variables a person may set for what runs, or ValueError."""
    for key, text in value.items():
        if not _ENV_NAME.fullmatch(key):
            raise ValueError(f"{key!r} is not an environment variable name")
        if key in RESERVED_ENV:
            raise ValueError(f"{key} is set by Shoal and cannot be given")
        if "\0" in text:
            raise ValueError(f"the value of {key} holds a NUL byte")
    return value


class JobSpec(Schema):
    """Everything needed to run a job again."""

    name: str
    entry: list[str] = Field(min_length=1, max_length=10_000)
    """The script, relative to the source root, and its arguments, verbatim."""
    source_id: str
    datasets: list[str] = []
    """Dataset names, each mounted at /input/<name>."""
    checkpoint: str | None = None
    """Id or name of a checkpoint to mount at /input-checkpoint."""
    min_nodes: int = Field(default=1, ge=1, le=10_000)
    max_nodes: int = Field(default=1, ge=1, le=10_000)
    grow: bool = False
    """Once it runs on fewer than the most nodes: save, and go on with more when there is room for them."""
    accels: int = Field(default=1, ge=1, le=1_024)
    """Slots per node, one worker on each."""
    device: Device = "auto"
    """Kind of slots. auto: accelerators where the pool has any that could hold the job, else CPUs; any: whichever are free."""
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    """Environment name → secret name. Values never enter the spec."""
    max_restarts: int = Field(default=3, ge=0, le=1_000)
    priority: int = Field(default=0, ge=-100, le=100)
    """Higher runs first, and may make lower ones save and wait; equal ones share, then go in order of submission."""
    time_limit_s: int | None = Field(default=None, ge=1, le=int(MAX_TIME_LIMIT.total_seconds()))
    """Of running, over all attempts. A job that has one may start ahead of its turn where it delays nobody."""
    stall_timeout_s: int | None = Field(default=None, ge=0, le=int(MAX_TIME_LIMIT.total_seconds()))
    """Seconds without a line, a metric or a step after which an attempt is ended and started again. 0: never. None: after the
    server's limit, and only where its ranks demonstrably hang."""
    expected_s: int | None = Field(default=None, ge=1, le=int(MAX_TIME_LIMIT.total_seconds()))
    """How long it is likely to run, if known; nothing is stopped because of it."""
    batch: str | None = None
    """Jobs of one batch, such as a sweep's, take the batch's place in the queue, the longest expected first."""
    exclude: list[str] = Field(default=[], max_length=1_000)
    """Machines it must not run on."""
    prefer: list[str] = Field(default=[], max_length=1_000)
    """Machines it runs on where they have room."""
    keep_last: int | None = Field(default=None, ge=1)
    """Checkpoints kept besides the best; None keeps all."""
    keep_best: str | None = Field(default=None, max_length=200)
    """Metric whose best checkpoint is kept (smaller is better; '-name' for larger)."""
    budget: BudgetText | None = None
    """What all its attempts together may use, or else it is stopped: money ('5.00'), or time of slots ('2h')."""
    launcher: Literal["direct", "torchrun"] = "direct"
    """Who starts the workers of a node: the agent itself (faster), or a torchrun process under it."""
    allow_cpu: bool = False
    """On an accelerator's slot: train on the CPU if torch cannot use the accelerator, instead of failing with the reason."""
    allow_torch_change: bool = False
    """Let requirements.txt replace the torch, torchvision and torchaudio of the machine; else that is refused."""

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return check_name(value, "job name")

    @field_validator("batch")
    @classmethod
    def _batch(cls, value: str | None) -> str | None:
        return None if value is None else check_name(value, "batch name")

    @field_validator("env", "secrets")
    @classmethod
    def _env_names(cls, value: dict[str, str]) -> dict[str, str]:
        return check_env(value)

    @model_validator(mode="after")
    def _node_range(self) -> JobSpec:
        if self.max_nodes < self.min_nodes:
            raise ValueError(f"--nodes {self.min_nodes}:{self.max_nodes} has its largest before its smallest")
        if self.grow and self.max_nodes == self.min_nodes:
            raise ValueError(f"--grow needs a range of nodes, such as --nodes {self.min_nodes}:{2 * self.min_nodes}")
        if both := sorted(set(self.exclude) & set(self.prefer)):
            raise ValueError(f"machine '{both[0]}' is given by both --exclude and --prefer")
        return self

    @property
    def min_slots(self) -> int:
        return self.min_nodes * self.accels


class Progress(View):
    """How far a job is. `source` says who told us: 'log' (read off the output) or 'sdk'."""

    step: int
    total: int | None = None
    unit: str = "step"
    source: str = "log"
    fraction: float | None = None
    eta_s: float | None = None
    """Seconds left at the present pace; None while unknown."""
    eta_low_s: float | None = None
    eta_high_s: float | None = None
    """Between these, as the pace has varied of late."""


def unfinished(progress: dict[str, Any]) -> dict[str, Any]:
    """Return the progress of a job that failed: never 100 %, even if its last step was done."""
    fraction = progress.get("fraction")
    return progress if fraction is None or fraction < 1 else {**progress, "fraction": 0.99, "eta_s": None}


class NodeView(View):
    index: int
    machine: str
    slots: list[int]
    state: NodeState
    pid: int | None = None
    exit_code: int | None = None
    reason: str | None = None
    paths: str | None = None
    """How /input and friends are provided here: 'bubblewrap' or 'rewrite'; with ', warm' if the worker began in a loaded interpreter."""


class AttemptView(View):
    number: int
    state: AttemptState
    result: str | None
    reason: str | None
    num_nodes: int
    created_at: Utc
    started_at: Utc | None
    ended_at: Utc | None
    nodes: list[NodeView]


class EventView(View):
    seq: int
    at: Utc
    kind: str
    message: str
    attempt: int | None = None
    data: dict[str, Any] = {}


class JobSummary(View):
    """A row of `training list`."""

    id: str
    name: str
    status: JobState
    stop_requested: bool = False
    nodes: int
    accels: int
    attempts: int
    progress: Progress | None
    created_at: Utc
    started_at: Utc | None
    ended_at: Utc | None
    exit_code: int | None
    reason: str | None
    imported: bool = False
    """It ran elsewhere and was brought in; nothing here runs or resumes it."""
    is_preflight: bool = False
    """It only tries what another job is to run, and is removed soon."""


class JobView(JobSummary):
    """What `training inspect` shows."""

    workspace: str
    created_by: str
    spec: JobSpec
    source: dict[str, Any]
    waiting: str | None = None
    """Why it waits, in our queue or in that of an engine."""
    stalled: str | None = None
    """Where its ranks are, while it has shown no progress for long."""
    attempt_list: list[AttemptView]
    events: list[EventView]
    metrics: dict[str, float | str] = {}
    """Metric → its last value."""
    bugs: list[BugView] = []
    """Steps that failed."""
    preflight: PreflightReport | None = None
    """What was found before it was submitted; of a preflight, what it found."""
    slot_seconds: float = 0.0
    """Used by all its attempts."""
    costs: dict[str, float] = {}
    """Currency → what that costs; empty where slots had no price."""


class LogLine(View):
    at: float
    """Unix seconds, from the node's clock."""
    attempt: int
    node: int
    rank: int | None
    """None for lines of Shoal's own (environment set-up, notices)."""
    stream: Annotated[str, Field(pattern="out|err|sys")] = "out"
    text: str


class LogPage(View):
    lines: list[LogLine]
    cursor: int
    """Give it back as `after` to go on."""
    more: bool
    """True when another page is ready now."""


class CapacityView(View):
    """What the pool could run, now and at best."""

    machines: list[MachineView]


class MachineView(View):
    name: str
    kind: str
    """cpu, cuda, rocm or xpu."""
    slots_total: int
    slots_free: int
    state: str = "up"
    problems: list[str] = []
