"""Jobs on the wire: a person's request (JobSpec), and the server's answers (JobView and the classes below it)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from shoal.core.after import After, When
from shoal.core.bugs import BugView
from shoal.core.device_requirements import DeviceRequirements, check_machines
from shoal.core.errors import UsageError
from shoal.core.folder_mounts import MOST, check_mounts
from shoal.core.money import plain_budget
from shoal.core.names import check_name
from shoal.core.preflight import PreflightReport
from shoal.core.schema import Utc, View
from shoal.core.sizes import parse_size
from shoal.core.states import AttemptState, JobState, NodeState

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENGINE_OPTION = re.compile(r"[a-z][a-z0-9-]{0,40}")
_ENGINE_VALUE = re.compile(r"[A-Za-z0-9_(\[][A-Za-z0-9_.,:@/+&|*()\[\]-]{0,199}")
RESERVED_ENV = frozenset(
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT SHOAL_JOB_ID SHOAL_ATTEMPT "
    "SHOAL_RANK SHOAL_RESUME_FROM SHOAL_SPOOL SHOAL_SWARM SHOAL_URL SHOAL_WORKSPACE SHOAL_JOB_TOKEN SHOAL_DEVICE "
    "SHOAL_ALLOW_CPU".split()
)
"""Environment variables that Shoal sets itself."""
Device = Literal["auto", "any", "gpu", "cpu", "cuda", "rocm", "xpu"]
"""Kind of slots a job requests. auto: accelerators if the pool has any that could hold the job, otherwise CPUs. any: slots that
are free, accelerators first. All slots of a job are of one kind."""
MAX_TIME_LIMIT = timedelta(days=365)


def _budget(text: str) -> str:
    try:
        return plain_budget(text)
    except UsageError as error:
        raise ValueError(error.message) from None


def _size(text: str) -> str:
    try:
        parse_size(text, "size")
        return text.strip()
    except UsageError as error:
        raise ValueError(error.message) from None


SizeText = Annotated[str, Field(max_length=20), AfterValidator(_size)]
"""An amount of memory or disk space as typed: 512M, 16G, 16GiB."""
BudgetText = Annotated[str, Field(max_length=40), AfterValidator(_budget)]


def check_env(value: dict[str, str]) -> dict[str, str]:
    """Return environment variables that a person may set; raise ValueError if a name is invalid or reserved."""
    for key, text in value.items():
        if not _ENV_NAME.fullmatch(key):
            raise ValueError(f"{key!r} is not an environment variable name")
        if key in RESERVED_ENV:
            raise ValueError(f"{key} is set by Shoal and cannot be given")
        if "\0" in text:
            raise ValueError(f"the value of {key} holds a NUL byte")
    return value


class JobSpec(DeviceRequirements):
    """The complete description of a job, sufficient to run it again."""

    name: str
    entry: list[str] = Field(min_length=1, max_length=10_000)
    """Script, relative to the root of the source, followed by its arguments, passed unchanged."""
    source_id: str
    datasets: list[str] = []
    """Dataset names, each mounted at /input/<name>."""
    mounts: list[str] = Field(default=[], max_length=MOST)
    """Buckets and folders of the machine that the job sees: s3://bucket/prefix:/data, or /folder:/data[:ro|rw]."""
    checkpoint: str | None = None
    """Id or name of a checkpoint to mount at /input-checkpoint."""
    min_nodes: int = Field(default=1, ge=1, le=10_000)
    max_nodes: int = Field(default=1, ge=1, le=10_000)
    grow: bool = False
    """Save the job and continue with more nodes when there is room, while it runs on fewer than `max_nodes`."""
    accels: int = Field(default=1, ge=1, le=1_024)
    """Slots per node. Each slot runs one worker."""
    device: Device = "auto"
    """Kind of slots. auto: accelerators if the pool has any that could hold the job, otherwise CPUs. any: slots that are
    free. gpu: accelerators of any kind, never CPUs."""
    mixed_models: bool = False
    """Allow the nodes of the job to have different models of accelerators, if there are not enough of one model. The slots of
    one node are of one model, and all are of one kind."""
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    """Environment name → secret name. Values never enter the spec."""
    max_restarts: int = Field(default=3, ge=0, le=1_000)
    priority: int = Field(default=0, ge=-100, le=100)
    """Higher priorities run first and may preempt lower ones, which save and wait. With equal priorities workspaces share the
    pool; then the order of submission counts."""
    time_limit_s: int | None = Field(default=None, ge=1, le=int(MAX_TIME_LIMIT.total_seconds()))
    """Maximum run time in seconds, summed over all attempts. A job with a limit can be backfilled: started earlier if that
    delays no other job."""
    stall_timeout_s: int | None = Field(default=None, ge=0, le=int(MAX_TIME_LIMIT.total_seconds()))
    """Seconds without a log line, metric or step after which an attempt is stopped and restarted. 0: never. None: the server's
    limit, and only if the ranks demonstrably hang."""
    on_stall: Literal["restart", "fail", "wait"] = "restart"
    """Reaction to an attempt that makes no progress. restart: it is ended and the job restarted from its newest checkpoint.
    fail: it is ended and the job fails. wait: it is only reported."""
    expected_s: int | None = Field(default=None, ge=1, le=int(MAX_TIME_LIMIT.total_seconds()))
    """Expected run time in seconds, if known. Used for start estimates only; never enforced."""
    batch: str | None = None
    """Name of a batch. Jobs of one batch, such as the trials of a sweep, share one place in the queue; the longest expected job
    starts first."""
    after: list[After] = Field(default=[], max_length=100)
    """Jobs that must have ended before this one enters the queue. Their newest checkpoints are at /input/<name>. If one of them
    does not succeed although it must, this job is stopped."""
    exclude: list[str] = Field(default=[], max_length=1_000)
    """Machines the job must not run on."""
    prefer: list[str] = Field(default=[], max_length=1_000)
    """Machines the job runs on if they have room."""
    keep_last: int | None = Field(default=None, ge=1)
    """Number of newest checkpoints to keep, besides the best; None keeps all."""
    keep_best: str | None = Field(default=None, max_length=200)
    """Metric whose best checkpoint is kept. Smaller is better; '-name': larger is better."""
    budget: BudgetText | None = None
    """Limit for all attempts together; the job is stopped when it is used up. Money ('5.00') or slot time ('2h')."""
    launcher: Literal["direct", "torchrun"] = "direct"
    """Process that starts the workers of a node: 'direct' is the agent itself (faster), 'torchrun' a torchrun process below
    it."""
    allow_cpu: bool = False
    """Train on the CPU if torch cannot use the accelerator of a slot, instead of failing."""
    memory: SizeText | None = None
    """Memory limit of each node. None: the share of the job's slots on a shared server, no limit on a private one."""
    cpus: float | None = Field(default=None, gt=0, le=4096)
    """CPUs each node may use. None: all, with the share of the job's slots when others want them too."""
    disk: SizeText | None = None
    """Disk space each node may use below its own folders. None: the server's job_disk_gb."""
    shm: SizeText | None = None
    """Size of /dev/shm on each node. None: half of the memory."""
    grace_s: int | None = Field(default=None, ge=0, le=3_600)
    """Seconds between SIGTERM and SIGKILL when the job is stopped, preempted or at a limit. None: the server's stop_grace_s."""
    one_device_per_worker: bool = False
    """Show each worker only its own accelerator, as number 0, instead of all those of its node."""
    engine_options: dict[str, str] = Field(default={}, max_length=50)
    """Options for the queue of a cluster, such as partition, used if the job runs there; each engine names those it knows."""
    allow_torch_change: bool = False
    """Allow requirements.txt to replace the machine's torch, torchvision and torchaudio; otherwise that is an error."""

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

    @field_validator("mounts")
    @classmethod
    def _mounts(cls, value: list[str]) -> list[str]:
        try:
            check_mounts(value)
        except UsageError as error:
            raise ValueError(f"{error.message} {error.hint or ''}".strip()) from error
        return value

    @field_validator("engine_options")
    @classmethod
    def _engine_options(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not _ENGINE_OPTION.fullmatch(name) or not _ENGINE_VALUE.fullmatch(text):
                raise ValueError(f"--engine-option {name}={text}: give NAME=VALUE, such as partition=gpu")
        return value

    @model_validator(mode="after")
    def _node_range(self) -> JobSpec:
        if self.max_nodes < self.min_nodes:
            raise ValueError(
                f"--nodes {self.min_nodes}:{self.max_nodes} is not a range: the first number must not be larger than the second"
            )
        if self.grow and self.max_nodes == self.min_nodes:
            raise ValueError(f"--grow needs a range of nodes, such as --nodes {self.min_nodes}:{2 * self.min_nodes}")
        check_machines(self.exclude, self.prefer)
        return self

    @property
    def min_slots(self) -> int:
        return self.min_nodes * self.accels


def stop_grace_s(spec: Mapping[str, Any], usual_s: float) -> float:
    """Return the seconds between SIGTERM and SIGKILL of a job, given its stored specification: its own, else `usual_s`."""
    own = spec.get("grace_s")
    return usual_s if own is None else float(own)


class Progress(View):
    """Progress of a job. `source` is where it comes from: 'log' (parsed from the output) or 'sdk'."""

    step: int
    total: int | None = None
    unit: str = "step"
    source: str = "log"
    fraction: float | None = None
    eta_s: float | None = None
    """Estimated seconds left at the present speed; None while unknown."""
    eta_low_s: float | None = None
    eta_high_s: float | None = None
    """Upper bound of the estimate; with `eta_low_s`, the range in which the speed has recently varied."""


def unfinished(progress: dict[str, Any]) -> dict[str, Any]:
    """Return the progress of a job that failed: never 100 %, even if its last step was done."""
    fraction = progress.get("fraction")
    return progress if fraction is None or fraction < 1 else {**progress, "fraction": 0.99, "eta_s": None}


class NodeView(View):
    """One node of an attempt."""

    index: int
    machine: str
    slots: list[int]
    state: NodeState
    pid: int | None = None
    exit_code: int | None = None
    reason: str | None = None
    paths: str | None = None
    """Method that provides /input and the other paths: 'bubblewrap' or 'rewrite'. ', warm' is added if the worker started in a
    preloaded interpreter."""
    sandbox: str | None = None
    """Level of the sandbox, S0 to S3, followed by what is missing: 'S2: no user of its own'. None until the workers run."""


class AttemptView(View):
    """One attempt to run a job."""

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
    """One entry of a job's history."""

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
    """True if the job ran elsewhere and was imported. It cannot be run or resumed here."""
    is_preflight: bool = False
    """True if the job only tests another job before it is submitted. It is removed soon after it has ended."""
    kind: str = "job"
    """Kind: job, trial (of a sweep), preflight or lease."""
    title: str = ""
    """Display name given by people; empty if there is none."""
    tags: list[str] = []
    starred: bool = False
    archived: bool = False


class JobView(JobSummary):
    """A job with all details, as shown by `training inspect`."""

    workspace: str
    created_by: str
    description: str = ""
    note: str = ""
    spec: JobSpec
    source: dict[str, Any]
    waiting: str | None = None
    """Reason why the job waits, in the server's queue or in that of an engine."""
    warnings: list[str] = []
    """Warnings about the newest attempt, such as a checkpoint that its script does not read."""
    stalled: str | None = None
    """Location of each rank in the code, while the job has made no progress for a long time."""
    attempt_list: list[AttemptView]
    events: list[EventView]
    metrics: dict[str, float | str] = {}
    """Metric → last value."""
    bugs: list[BugView] = []
    """Steps that failed."""
    chain: list[AfterView] = []
    """Jobs that this one starts after, and jobs that start after it."""
    preflight: PreflightReport | None = None
    """Findings of the preflight before the job was submitted; for a preflight, its own findings."""
    slot_seconds: float = 0.0
    """Slot time used by all attempts, in seconds."""
    costs: dict[str, float] = {}
    """Currency → cost of the slot time; empty if the slots had no price."""


class AfterView(View):
    """A job before or after another one."""

    job: str
    id: str
    when: When
    """End of the earlier of the two that the later one waits for."""
    status: JobState | None
    """State of this job; None if it was deleted."""
    is_next: bool = False
    """True if this job starts after the one that is shown, False if it comes before it."""


class LogLine(View):
    at: float
    """Unix time in seconds, from the node's clock."""
    attempt: int
    node: int
    rank: int | None
    """Rank of the worker; None for lines that Shoal itself writes (environment set-up, notices)."""
    stream: Annotated[str, Field(pattern="out|err|sys")] = "out"
    text: str


class LogPage(View):
    """One page of a log."""

    lines: list[LogLine]
    cursor: int
    """Position after the last line. Pass it as `after` to get the next page."""
    more: bool
    """True if another page is available now."""


class CapacityView(View):
    """The machines of the pool with their slots."""

    machines: list[MachineView]


class DeviceView(View):
    """One accelerator of a machine."""

    slot: int
    uuid: str = ""
    """UUID, or the PCI address if it has none."""
    label: str
    """Name for people, such as "GPU 3"."""
    model: str = ""
    memory: int | None = None
    """Bytes of its own memory; None if it shares the machine's memory."""
    pci: str = ""
    driver: str = ""
    runtime: str = ""
    """Newest version of CUDA or ROCm that the driver supports."""
    is_free: bool
    problem: str = ""
    """Why it takes no new jobs: broken, or drained; empty otherwise."""
    numa: int | None = None
    """NUMA node of its PCI slot; None if unknown, or if the machine has one."""
    island: int | None = None
    """Number of the group of devices it is connected to by NVLink; None without NVLink."""
    util: float | None = None
    """Share of the time in which it computed, in percent; None if unknown."""
    memory_used: float | None = None
    """Bytes of its memory in use."""
    watts: float | None = None
    celsius: float | None = None
    mhz: float | None = None
    ecc_errors: float | None = None
    """Uncorrectable ECC errors since the last reset."""
    throttled: bool | None = None
    """True while heat or the power supply slows it down."""
    nvlink_errors: float | None = None


class DeviceRecordView(View):
    """State of an accelerator in a period."""

    machine: str
    uuid: str
    """UUID, or the PCI address if it has none."""
    label: str
    model: str = ""
    memory: int | None = None
    driver: str = ""
    problem: str = ""
    """Why it took no new jobs; empty while it was healthy and not drained."""
    since: Utc
    until: Utc | None = None
    """End of the period: it has changed, or disappeared. None: this is how it is now."""


class MachineView(View):
    """A machine of the pool and its slots."""

    name: str
    kind: str
    """Kind of slots: cpu, cuda, rocm or xpu."""
    slots_total: int
    slots_free: int
    state: str = "up"
    problems: list[str] = []
    devices: list[DeviceView] = []
    """The accelerator of each slot, if they are known."""
