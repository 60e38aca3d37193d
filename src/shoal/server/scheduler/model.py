"""Input and output of the scheduler's decision, as plain values: tests and simulations can make up any pool.

Points in time are Unix seconds; durations are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Rules of the queue that an admin can set; `ServerSettings` documents each of them."""

    half_life_s: float = 86_400.0
    """Age at which past usage of a workspace counts half."""
    patience_s: float = 86_400.0
    """Waiting time after which a workspace that has nothing running goes before all others."""
    preempt: bool = True
    grace_s: float = 10.0
    """Seconds a job needs to end after it was asked to stop."""
    spare_s: float = 30.0
    """No job is preempted for one that will start within this time anyway."""
    commit_s: float = 3_600.0
    """Slot-seconds that a newly assigned slot counts as used at once, for fair share."""
    grow_s: float = 300.0
    """Minimum run time of an attempt before it is restarted with more nodes."""

    def grace_of(self, job: QueuedJob | None) -> float:
        """Return the seconds that a job needs to end after it was asked to stop."""
        return self.grace_s if job is None or job.grace_s is None else job.grace_s


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineState:
    name: str
    slots: int
    used: frozenset[int] = frozenset()
    kind: str = "cpu"
    """cpu, cuda, rocm or xpu."""
    state: str = "up"
    """State for display; anything but "up" means that no job can start on it."""

    model: str = ""
    """Model of its accelerators, all of which are the same; empty if unknown."""
    memory: int | None = None
    """Bytes of memory of each accelerator; None if unknown."""
    labels: frozenset[str] = frozenset()
    """Labels as key=value."""
    numbers: tuple[int, ...] = ()
    """Numbers of its slots, if they are not 0 to `slots` - 1."""
    places: Mapping[int, tuple[int | None, int | None]] = field(default_factory=dict)
    """Slot → NVLink island and NUMA node of its accelerator, None if unknown; empty if nothing is known."""

    @property
    def free(self) -> list[int]:
        return [s for s in self.numbers or range(self.slots) if s not in self.used]


@dataclass(frozen=True, slots=True)
class Avoided:
    """Places where attempts of a job met faults of the machine, its devices or its network."""

    slots: frozenset[tuple[str, int]]
    """(machine, slot)."""
    until: float
    """Time from which these places are used again if no others are free."""
    never: frozenset[tuple[str, int]] = frozenset()
    """(machine, slot) of accelerators that failed the job: it never runs on them again."""

    @property
    def machines(self) -> frozenset[str]:
        return frozenset(machine for machine, _ in self.slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    job_id: str
    priority: int
    order: tuple[float, str] | tuple[float, str, float, str]
    """Sort key within its workspace: submission time and id, or those of its batch followed by its place in the batch."""
    min_nodes: int
    max_nodes: int
    accels: int
    workspace: str = ""
    since: float = 0.0
    """Time of submission."""
    limit_s: float | None = None
    """Seconds left of its time limit; None without a limit."""
    expected_s: float | None = None
    """Expected seconds until it ends; None if unknown."""
    exclude: frozenset[str] = frozenset()
    prefer: frozenset[str] = frozenset()
    avoided: Avoided | None = None
    device: str = "auto"
    """Kind of slots it requests; see `kinds`."""
    gpu: str = ""
    """Model of the accelerators it requests, as a person writes it; empty: any model."""
    gpu_memory: int = 0
    """Bytes of memory that each of its accelerators needs at least."""
    mixed_models: bool = False
    """Allow nodes with different models of accelerators; the kind is the same on all of them."""
    labels: frozenset[str] = frozenset()
    """Labels, as key=value, that its machines must have."""
    grace_s: float | None = None
    """Seconds it may take to end after it was asked to stop; None: those of the policy."""
    after: tuple[Mapping[str, Any], ...] = ()
    """Jobs that must have ended before, as in its specification."""

    @property
    def min_slots(self) -> int:
        return self.min_nodes * self.accels


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    job_id: str
    priority: int
    slots: Mapping[str, int]
    """Machine → number of its slots that the job holds."""
    workspace: str = ""
    started: float = 0.0
    ends_in_s: float | None = None
    """Seconds until its expected end or its time limit, whichever comes first; None if both are unknown."""
    stopping: bool = False
    """True once the job was asked to stop."""
    keeps: bool = False
    """True if the job must not be preempted (again)."""
    asked: QueuedJob | None = None
    """The job's request, as it would stand in the queue."""
    may_grow: bool = False
    """True if the job wants more nodes and has run long enough to be restarted for them."""
    unusable: int = 0
    """Further slots it holds whose devices take no new jobs; they do not become free when it ends."""

    @property
    def total(self) -> int:
        return sum(self.slots.values()) + self.unusable


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Weight, quota and past usage of a workspace."""

    weight: float = 1.0
    quota: int | None = None
    """Maximum number of slots it may hold at once; None without a quota."""
    models: Mapping[str, int] = field(default_factory=dict)
    """Model of GPU, as a person writes it → maximum number of slots of it."""
    used_s: float = 0.0
    """Slot-seconds used in the past, discounted by age."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """Everything a decision depends on, at one point in time."""

    now: float
    machines: Sequence[MachineState]
    queue: Sequence[QueuedJob]
    running: Sequence[RunningJob] = ()
    shares: Mapping[str, Share] = field(default_factory=dict)
    """Workspace id → its share. A workspace that is not listed has a weight of 1 and no quota."""
    policy: Policy = field(default_factory=Policy)
    promised: tuple[str, ...] = ()
    """Jobs that held a reservation after the last pass. They stay first within their priority even if shares have changed."""
    away: Sequence[MachineState] = ()
    """Machines of the pool on which no job can start now: lost, draining, or not answering."""
    held: Mapping[str, str] = field(default_factory=dict)
    """Jobs that wait for other jobs to end, and so are not in `queue` yet → the reason in words."""
    hopeless: Mapping[str, str] = field(default_factory=dict)
    """Jobs that wait for a job that can no longer succeed → the reason in words."""


@dataclass(frozen=True, slots=True)
class Placement:
    """One node of a gang: its machine and its slots there."""

    machine: str
    slots: tuple[int, ...]


class Hold(StrEnum):
    """Reason why a job waits."""

    SLOTS = "slots"
    """The job is next in line, but too few slots are free."""
    QUOTA = "quota"
    """The workspace's quota is used up, or an earlier job of the workspace waits for the quota."""
    MACHINES = "machines"
    """The machines that are up could not run the job even if all were free."""
    PAUSE = "pause"
    """The job just failed on the only machines it fits on; it is retried there after a pause."""
    AFTER = "after"
    """The job starts after another one, which has not ended."""
    TURN = "turn"
    """Other jobs go first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Planned start of the first job that has to wait for slots of its kinds. Other jobs must not delay it."""

    job_id: str
    starts_in_s: float | None
    """Seconds until the start; None if it depends on a job whose end is unknown."""
    nodes: Mapping[str, int]
    """Machine → number of nodes the job will have there."""
    room: Mapping[str, int]
    """Machine → slots that stay free there after the job has started."""
    kinds: frozenset[str] = frozenset()
    """Kinds of slots the job may start on. No other job holds a reservation on any of them."""


@dataclass(frozen=True, slots=True)
class Decision:
    starts: list[tuple[str, list[Placement]]] = field(default_factory=list)
    waiting: dict[str, str] = field(default_factory=dict)
    """Job id → why it waits, as text for users; in queue order."""
    preempts: dict[str, str] = field(default_factory=dict)
    """Id of a running job to stop and queue again → id of the job that gets its slots."""
    grows: dict[str, int] = field(default_factory=dict)
    """Id of a running job that could save and restart → its nodes then. Computed for each job alone; best candidate first."""
    holds: dict[str, Hold] = field(default_factory=dict)
    """Job id → reason, for jobs that wait for anything besides their turn."""
    reserved: list[Reservation] = field(default_factory=list)
    """Reservations, the one for the head of the queue first. Jobs behind it get one if they wait for other kinds of slots."""

    @property
    def head(self) -> Reservation | None:
        return self.reserved[0] if self.reserved else None

    def head_of(self, kinds: frozenset[str]) -> Reservation | None:
        """Return the first reservation on any of these kinds: jobs that use them must not delay it. None without one."""
        return next((found for found in self.reserved if not kinds.isdisjoint(found.kinds)), None)
