"""What the scheduler decides on, and what it decides: plain values, so that a made-up pool is as good as a real one.

Moments are Unix seconds, lengths are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The queue's rules that can be set; `ServerSettings` says what each means to people."""

    half_life_s: float = 86_400.0
    """After this long, what a workspace has used counts half as much."""
    patience_s: float = 86_400.0
    """A workspace with nothing running is served before all others once a job of its own has waited this long."""
    preempt: bool = True
    grace_s: float = 10.0
    """What a job takes to end when it is told to."""
    spare_s: float = 30.0
    """Nothing is preempted for a job that is to start within this time anyway."""
    commit_s: float = 3_600.0
    """What a slot just given counts as used, in slot-seconds."""
    grow_s: float = 300.0
    """An attempt runs at least this long before it ends for one with more nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineState:
    name: str
    slots: int
    used: frozenset[int] = frozenset()
    kind: str = "cpu"
    """cpu, cuda, rocm or xpu."""
    state: str = "up"
    """In words for people, where nothing can start on it."""

    @property
    def free(self) -> list[int]:
        return [s for s in range(self.slots) if s not in self.used]


@dataclass(frozen=True, slots=True)
class Avoided:
    """Places where attempts of a job met faults of the machine, its devices or its network."""

    slots: frozenset[tuple[str, int]]
    """(machine, slot)."""
    until: float
    """From this moment on they are used again if there is nothing else."""

    @property
    def machines(self) -> frozenset[str]:
        return frozenset(machine for machine, _ in self.slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    job_id: str
    priority: int
    order: tuple[float, str] | tuple[float, str, float, str]
    """What goes first within a workspace: submission time and id, or those of its batch and then its place in it."""
    min_nodes: int
    max_nodes: int
    accels: int
    workspace: str = ""
    since: float = 0.0
    """When it was submitted."""
    limit_s: float | None = None
    """What is left of its time limit: it never runs longer."""
    expected_s: float | None = None
    """How long it is likely to run; None if nothing is known."""
    exclude: frozenset[str] = frozenset()
    prefer: frozenset[str] = frozenset()
    avoided: Avoided | None = None
    device: str = "auto"
    """Kind of slots it asks for; see `kinds`."""

    @property
    def min_slots(self) -> int:
        return self.min_nodes * self.accels


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    job_id: str
    priority: int
    slots: Mapping[str, int]
    """Machine → how many of its slots it holds."""
    workspace: str = ""
    started: float = 0.0
    ends_in_s: float | None = None
    """Until its likely or latest end, whichever is sooner; None if nothing is known."""
    stopping: bool = False
    """It has been told to end."""
    keeps: bool = False
    """It is not preempted (again)."""
    asked: QueuedJob | None = None
    """What it would be in the queue."""
    may_grow: bool = False
    """It wants more nodes, and has run long enough to be started again for them."""

    @property
    def total(self) -> int:
        return sum(self.slots.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a workspace may use, and has."""

    weight: float = 1.0
    quota: int | None = None
    """Slots it may hold at once."""
    used_s: float = 0.0
    """Slot-seconds of the past, faded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All there is to know at one moment."""

    now: float
    machines: Sequence[MachineState]
    queue: Sequence[QueuedJob]
    running: Sequence[RunningJob] = ()
    shares: Mapping[str, Share] = field(default_factory=dict)
    """By workspace; one that is not listed has a weight of 1 and no quota."""
    policy: Policy = field(default_factory=Policy)
    promised: tuple[str, ...] = ()
    """The jobs that starts were kept for before: no other of their priority goes first, however shares have changed since."""
    away: Sequence[MachineState] = ()
    """Machines of the pool on which nothing can start now: lost, draining, or not answering."""


@dataclass(frozen=True, slots=True)
class Placement:
    """One node of a gang: a machine and the slots it gets there."""

    machine: str
    slots: tuple[int, ...]


class Hold(StrEnum):
    """Why a job waits."""

    SLOTS = "slots"
    """It is next, and too little is free."""
    QUOTA = "quota"
    """Its workspace's quota is used up, or an earlier job of the workspace waits for that."""
    MACHINES = "machines"
    """Not even the whole pool that is up now could run it."""
    PAUSE = "pause"
    """The only place for it has just failed it: it is tried again there after a pause."""
    TURN = "turn"
    """Others are before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """The start that is kept for the first job that has to wait for slots of its kinds."""

    job_id: str
    starts_in_s: float | None
    """None where it rests on the end of a job that nobody can foretell."""
    nodes: Mapping[str, int]
    """Machine → nodes it will have there."""
    room: Mapping[str, int]
    """Machine → slots it leaves free there from then on."""
    kinds: frozenset[str] = frozenset()
    """Kinds of slots it may start on: nobody else waits for one of them with a reservation."""


@dataclass(frozen=True, slots=True)
class Decision:
    starts: list[tuple[str, list[Placement]]] = field(default_factory=list)
    waiting: dict[str, str] = field(default_factory=dict)
    """Job id → why it waits, in words for people; in the order of the queue."""
    preempts: dict[str, str] = field(default_factory=dict)
    """Running job to end and queue again → the job it makes room for."""
    grows: dict[str, int] = field(default_factory=dict)
    """Running job that could save and start again, alone of these → the nodes it would have then; the first first."""
    holds: dict[str, Hold] = field(default_factory=dict)
    """Of jobs that wait for more than their turn."""
    reserved: list[Reservation] = field(default_factory=list)
    """For the head of the queue first. Jobs behind it have one where they wait for other kinds of slots."""

    @property
    def head(self) -> Reservation | None:
        return self.reserved[0] if self.reserved else None

    def head_of(self, kinds: frozenset[str]) -> Reservation | None:
        """The first reservation that a job which may use these kinds must not delay."""
        return next((found for found in self.reserved if not kinds.isdisjoint(found.kinds)), None)
