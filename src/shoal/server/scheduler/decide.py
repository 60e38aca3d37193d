"""Which queued jobs start now, where, and which running ones make way: a pure decision on a snapshot.

Jobs are looked at in the order of `order.ranked`. The first that does not fit gets a reservation; those behind it start
only where they leave that untouched: on slots it will not need, or for less time than it has to wait. Jobs that cannot run
on the same kinds of slots do not compete, so each such kind has a reservation of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from shoal.server.scheduler.avoid import choose_apart, last_resort
from shoal.server.scheduler.grow import growth
from shoal.server.scheduler.kinds import ANY, AUTO, Choice, Kinds, zone
from shoal.server.scheduler.model import (
    Decision,
    Hold,
    MachineState,
    Placement,
    Policy,
    QueuedJob,
    Reservation,
    RunningJob,
    Share,
    Snapshot,
)
from shoal.server.scheduler.order import ranked
from shoal.server.scheduler.reserve import could_ever, is_brief, reserve, victims
from shoal.server.scheduler.room import Room
from shoal.server.scheduler.share import held_slots

__all__ = ["Decision", "Hold", "MachineState", "Placement", "Policy", "QueuedJob", "Reservation", "RunningJob", "Share",
           "Snapshot", "decide", "largest_possible"]  # fmt: skip


_MOST_NAMED = 3


def decide(snapshot: Snapshot) -> Decision:
    return _Pass(snapshot).run()


def largest_possible(machines: Sequence[MachineState], accels: int, device: str = AUTO) -> tuple[int, int]:
    """(nodes, accels) of the largest request the empty pool could run, keeping `accels` if any machine has as many."""
    usable = [m for m in machines if device in (AUTO, ANY, m.kind)]
    accels = min(accels, max((m.slots for m in usable), default=0))
    nodes: dict[tuple[str, str], int] = {}
    for m in usable if accels else ():
        group = (zone(m.name), m.kind)
        nodes[group] = nodes.get(group, 0) + m.slots // accels
    return max(nodes.values(), default=0), accels


class _Pass:
    def __init__(self, snapshot: Snapshot):
        self.snapshot, self.decision = snapshot, Decision()
        self.slots = {m.name: m.free for m in snapshot.machines}
        self.kinds = Kinds.seen(snapshot)
        self.room = Room({m: len(s) for m, s in self.slots.items()}, self.kinds)
        self.lasting: Room | None = None
        """Slots the heads leave to others for good, once there is a head."""
        self._room_left: dict[str, int] = {}
        """Machine of a kind that a head waits for → what may still be given away there for good."""
        held = held_slots(snapshot.running)
        self.held = held
        self.left = {w: s.quota - held[w] for w, s in snapshot.shares.items() if s.quota is not None}
        self.full: set[str] = set()
        """Workspaces whose next job waits for their quota, and the rest of theirs with it."""
        self.latest: dict[frozenset[str], float | None] = {}
        """Answers of `_latest_end`; forgotten whenever another start is kept."""
        self.possible: dict[tuple[int, int, frozenset[str], str], bool] = {}

    def run(self) -> Decision:
        waiting, left, kinds = self.decision.waiting, self.left, self.kinds
        for job in ranked(self.snapshot):
            choice = kinds.choice(job)
            if job.workspace not in left and self.room.is_full(choice) and self._has_head(choice):
                waiting[job.job_id] = f"place {len(waiting) + 1} in the queue"  # the long tail of a long queue
            elif self._in_quota(job):
                self._consider(job, choice)
        self.decision.grows.update(growth(self.snapshot, self.decision, self.room.free, self.left, self.kinds))
        return self.decision

    def _has_head(self, choice: Choice) -> bool:
        return self._latest_end(choice.kinds) is not None

    def _latest_end(self, kinds: frozenset[str]) -> float | None:
        """Seconds until a start that is kept on these kinds of slots; -inf if nobody knows, None if there is none."""
        if kinds not in self.latest:
            kept = [found.starts_in_s for found in self.decision.reserved if not kinds.isdisjoint(found.kinds)]
            self.latest[kinds] = min((float("-inf") if s is None else s for s in kept), default=None)
        return self.latest[kinds]

    def _consider(self, job: QueuedJob, choice: Choice) -> None:
        most = job.max_nodes
        if job.workspace in self.left:
            most = min(most, self.left[job.workspace] // job.accels)
        if self._pauses(job) and self._choose(self.room, job, most, choice) is None:
            self._hold(job, Hold.PAUSE, self._pause_text(job))
            return
        until = self._latest_end(choice.kinds)
        if until is None:
            nodes = self._choose(self.room, job, most, choice)
            if nodes is None:
                self._hold_place(job)
            else:
                self._start(job, nodes)
            return
        nodes = self._choose(self.lasting, job, most, choice) if self.lasting is not None else None
        if nodes is not None:
            self._start(job, nodes, for_good=True)
        elif is_brief(job, until, self.snapshot.policy) and (nodes := self._choose(self.room, job, most, choice)):
            self._start(job, nodes)
        elif self._is_possible(job):
            self._turn(job)
        else:
            self._hold(job, Hold.MACHINES, self._machines_text(job))

    def _choose(self, room: Room, job: QueuedJob, most: int, choice: Choice) -> dict[str, int] | None:
        if job.avoided is None:
            return room.choose(job, most, choice)
        return choose_apart(room.free, self.slots, self.snapshot.machines, job, most, self.snapshot.now, self.kinds)

    def _pauses(self, job: QueuedJob) -> bool:
        return job.avoided is not None and self.snapshot.now < job.avoided.until

    def _pause_text(self, job: QueuedJob) -> str:
        assert job.avoided is not None  # noqa: S101
        left_s = math.ceil(job.avoided.until - self.snapshot.now)
        names = ", ".join(sorted(job.avoided.machines))
        return f"failed on {names} by a fault there; tried again there in {left_s} s if no other machine is free"

    def _hold_place(self, job: QueuedJob) -> None:
        """The first that must wait for slots of its kinds: from now on nobody may delay it."""
        if not self._is_possible(job):
            self._hold(job, Hold.MACHINES, self._machines_text(job))
            return
        reserved = self._reserve(job)
        self.decision.reserved.append(reserved)
        self.latest.clear()
        of, lasting = self.kinds.of, self.lasting or Room(self.room.free, self.kinds)
        self.lasting = lasting
        for machine, count in reserved.room.items():
            if of[machine] in reserved.kinds:
                self._room_left[machine] = count
                lasting.set(machine, min(self.room.free[machine], count))
        self._hold(job, Hold.SLOTS, self._head_text(job))

    def _reserve(self, job: QueuedJob) -> Reservation:
        running, policy = self.snapshot.running, self.snapshot.policy
        ending = {r.job_id: policy.grace_s for r in running if r.stopping}
        reserved = reserve(self.room.free, self._all_running(), job, ending, self.kinds)
        if policy.preempt and (reserved is None or not _is_soon(reserved, policy)):
            making_way = victims(self.room.free, running, job, self.kinds)
            if making_way:
                self.decision.preempts.update({v.job_id: job.job_id for v in making_way})
                ending |= {v.job_id: policy.grace_s for v in making_way}
                reserved = reserve(self.room.free, self._all_running(), job, ending, self.kinds)
        if reserved is not None:
            return reserved
        # Slots are held by something that is not among the running.
        nothing: Mapping[str, int] = dict.fromkeys(self.slots, 0)
        return Reservation(job_id=job.job_id, starts_in_s=None, nodes={}, room=nothing, kinds=self.kinds.allowed(job))

    def _all_running(self) -> list[RunningJob]:
        """With those that this very pass starts."""
        by_id = {job.job_id: job for job in self.snapshot.queue} if self.decision.starts else {}
        started = []
        for job_id, gang in self.decision.starts:
            job, slots = by_id[job_id], dict[str, int]()
            for node in gang:
                slots[node.machine] = slots.get(node.machine, 0) + len(node.slots)
            lengths = [length for length in (job.limit_s, job.expected_s) if length is not None]
            started.append(
                RunningJob(
                    job_id=job_id,
                    priority=job.priority,
                    slots=slots,
                    started=self.snapshot.now,
                    ends_in_s=min(lengths, default=None),
                )
            )
        return [*self.snapshot.running, *started]

    def _start(self, job: QueuedJob, nodes: dict[str, int], *, for_good: bool = False) -> None:
        """`for_good`: it may still run when the heads are to start, on slots they leave to others."""
        self.room.take(job, nodes)
        if self.lasting is not None:
            for machine, number in nodes.items():
                left = self._room_left.get(machine, self.room.free[machine])
                if for_good and machine in self._room_left:
                    self._room_left[machine] = left = left - number * job.accels
                self.lasting.set(machine, min(self.room.free[machine], left))
        if job.workspace in self.left:
            self.left[job.workspace] -= sum(nodes.values()) * job.accels
        self.decision.starts.append((job.job_id, _gang(self.slots, nodes, job)))

    def _in_quota(self, job: QueuedJob) -> bool:
        if job.workspace not in self.left:
            return True
        quota = self.snapshot.shares[job.workspace].quota or 0
        if job.workspace not in self.full and job.min_slots <= self.left[job.workspace]:
            return True
        if job.min_slots <= quota:  # one that is larger than the quota itself must not hold up the others
            self.full.add(job.workspace)
        used = quota - self.left[job.workspace]
        self._hold(job, Hold.QUOTA, f"its workspace may hold {_slots(quota)} at once, and holds {used} now")
        return False

    def _is_possible(self, job: QueuedJob) -> bool:
        asked = (job.accels, job.min_nodes, job.exclude, job.device)
        if asked not in self.possible:
            self.possible[asked] = could_ever(self.snapshot.machines, job, self.kinds)
        return self.possible[asked]

    def _turn(self, job: QueuedJob) -> None:
        waiting = self.decision.waiting
        waiting[job.job_id] = f"place {len(waiting) + 1} in the queue"

    def _hold(self, job: QueuedJob, hold: Hold, text: str) -> None:
        self.decision.holds[job.job_id] = hold
        self.decision.waiting[job.job_id] = text

    def _head_text(self, job: QueuedJob) -> str:
        number = len(self.decision.preempts)
        makes_way = f"; {number} of lower priority make{'s' if number == 1 else ''} way" if number else ""
        free = sum(n for m, n in self.room.free.items() if self.kinds.may_use(job, m))
        return f"next in line; needs {needed(job, self.kinds)}, {free} free now{makes_way}"

    def _machines_text(self, job: QueuedJob) -> str:
        """Why not even all machines that are up could run it, with those that could if they were."""
        kinds, needs = self.kinds, f"needs {needed(job, self.kinds)}"
        away = [f"{m.name} is {m.state}" for m in self.snapshot.away if m.slots and kinds.may_use(job, m.name)]
        out = f" ({', '.join(away[:_MOST_NAMED])}{', …' if len(away) > _MOST_NAMED else ''})" if away else ""
        if not any(m.slots and kinds.may_use(job, m.name) for m in self.snapshot.machines) and kinds.words(job):
            return f"{needs}: no machine with {kinds.words(job)}slots is up now{out}"
        if kinds.are_several and job.device in (AUTO, ANY):
            return f"{needs} of one kind: more than the machines that are up now have{out}"
        return f"{needs}: more than all machines that are up now{out}"


def needed(job: QueuedJob, kinds: Kinds) -> str:
    where = f" outside {', '.join(sorted(job.exclude))}" if job.exclude else ""
    word = kinds.words(job)
    each = f"{job.accels} {word}slot{'s' if job.accels != 1 else ''}"
    return (f"{job.min_nodes} × {job.accels} {word}slots" if job.min_nodes > 1 else each) + where


def _is_soon(reserved: Reservation, policy: Policy) -> bool:
    return reserved.starts_in_s is not None and reserved.starts_in_s <= policy.spare_s


def _gang(slots: dict[str, list[int]], nodes: dict[str, int], job: QueuedJob) -> list[Placement]:
    gang = []
    for machine, number in nodes.items():
        ordered = last_resort(machine, slots[machine], job)
        taken = [ordered[i * job.accels : (i + 1) * job.accels] for i in range(number)]
        gang += [Placement(machine, tuple(part)) for part in taken]
        used = {slot for part in taken for slot in part}
        slots[machine] = [slot for slot in slots[machine] if slot not in used]
    return gang


def _slots(count: int) -> str:
    return f"{count} slot{'s' if count != 1 else ''}"
