"""Which queued jobs start now, where, and which running ones make way: a pure decision on a snapshot.

Jobs are looked at in the order of `order.ranked`. The first that does not fit gets a reservation; those behind it start
only where they leave that untouched: on slots it will not need, or for less time than it has to wait.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from shoal.server.scheduler.avoid import choose_apart, last_resort
from shoal.server.scheduler.grow import growth
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
from shoal.server.scheduler.room import Room, by_zone, choose
from shoal.server.scheduler.share import held_slots

__all__ = ["Decision", "Hold", "MachineState", "Placement", "Policy", "QueuedJob", "Reservation", "RunningJob", "Share",
           "Snapshot", "decide", "largest_possible", "place"]  # fmt: skip


def decide(snapshot: Snapshot) -> Decision:
    return _Pass(snapshot).run()


def place(free: dict[str, list[int]], job: QueuedJob) -> list[Placement] | None:
    """Where a job would go if it were alone; None if there is no room for its smallest number of nodes."""
    nodes = choose({m: len(slots) for m, slots in free.items()}, job, job.max_nodes)
    return None if nodes is None else _gang({m: list(free[m]) for m in nodes}, nodes, job)


def largest_possible(machines: Sequence[MachineState], accels: int) -> tuple[int, int]:
    """(nodes, accels) of the largest request the empty pool could run, keeping `accels` if any machine has as many."""
    biggest = max((m.slots for m in machines), default=0)
    accels = min(accels, biggest)
    nodes = by_zone((m.name, m.slots // accels) for m in machines) if accels else {}
    return max((sum(part.values()) for part in nodes.values()), default=0), accels


class _Pass:
    def __init__(self, snapshot: Snapshot):
        self.snapshot, self.decision = snapshot, Decision()
        self.slots = {m.name: m.free for m in snapshot.machines}
        self.room = Room({m: len(s) for m, s in self.slots.items()})
        self.lasting: Room | None = None
        """What the head leaves to others for good, once there is a head."""
        held = held_slots(snapshot.running)
        self.held = held
        self.left = {w: s.quota - held[w] for w, s in snapshot.shares.items() if s.quota is not None}
        self.full: set[str] = set()
        """Workspaces whose next job waits for their quota, and the rest of theirs with it."""
        self.possible: dict[tuple[int, int, frozenset[str]], bool] = {}

    def run(self) -> Decision:
        waiting, left = self.decision.waiting, self.left
        for job in ranked(self.snapshot):
            if self.lasting is not None and not self.room.total and job.workspace not in left:
                waiting[job.job_id] = f"place {len(waiting) + 1} in the queue"  # the long tail of a long queue
            elif self._in_quota(job):
                self._consider(job)
        self.decision.grows.update(growth(self.snapshot, self.decision, self.room.free, self.left))
        return self.decision

    def _consider(self, job: QueuedJob) -> None:
        most = job.max_nodes
        if job.workspace in self.left:
            most = min(most, self.left[job.workspace] // job.accels)
        if self._pauses(job) and self._choose(self.room, job, most) is None:
            self._hold(job, Hold.PAUSE, self._pause_text(job))
            return
        head = self.decision.head
        if head is None:
            nodes = self._choose(self.room, job, most)
            if nodes is None:
                self._hold_place(job)
            else:
                self._start(job, nodes)
            return
        nodes = self._choose(self.lasting, job, most) if self.lasting is not None else None
        if nodes is not None:
            self._start(job, nodes, from_room=head)
        elif is_brief(job, head, self.snapshot.policy) and (nodes := self._choose(self.room, job, most)) is not None:
            self._start(job, nodes)
        elif self._is_possible(job):
            self._turn(job)
        else:
            self._hold(job, Hold.MACHINES, _machines_text(job))

    def _choose(self, room: Room, job: QueuedJob, most: int) -> dict[str, int] | None:
        if job.avoided is None:
            return room.choose(job, most)
        return choose_apart(room.free, self.slots, self.snapshot.machines, job, most, self.snapshot.now)

    def _pauses(self, job: QueuedJob) -> bool:
        return job.avoided is not None and self.snapshot.now < job.avoided.until

    def _pause_text(self, job: QueuedJob) -> str:
        assert job.avoided is not None  # noqa: S101
        left_s = math.ceil(job.avoided.until - self.snapshot.now)
        names = ", ".join(sorted(job.avoided.machines))
        return f"failed on {names} by a fault there; tried again there in {left_s} s if no other machine is free"

    def _hold_place(self, job: QueuedJob) -> None:
        """The first that must wait: from now on nobody may delay it."""
        if not self._is_possible(job):
            self._hold(job, Hold.MACHINES, _machines_text(job))
            return
        running, policy = self.snapshot.running, self.snapshot.policy
        ending = {r.job_id: policy.grace_s for r in running if r.stopping}
        reserved = reserve(self.room.free, self._all_running(), job, ending)
        if policy.preempt and (reserved is None or not _is_soon(reserved, policy)):
            making_way = victims(self.room.free, running, job)
            if making_way:
                self.decision.preempts.update({v.job_id: job.job_id for v in making_way})
                ending |= {v.job_id: policy.grace_s for v in making_way}
                reserved = reserve(self.room.free, self._all_running(), job, ending)
        if reserved is None:  # slots are held by something that is not among the running
            reserved = Reservation(job_id=job.job_id, starts_in_s=None, nodes={}, room=dict.fromkeys(self.slots, 0))
        self.decision.reserved.append(reserved)
        self.lasting = Room({m: min(n, reserved.room[m]) for m, n in self.room.free.items()})
        self._room_left = dict(reserved.room)
        self._hold(job, Hold.SLOTS, self._head_text(job))

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

    def _start(self, job: QueuedJob, nodes: dict[str, int], *, from_room: Reservation | None = None) -> None:
        self.room.take(job, nodes)
        if self.lasting is not None:
            for machine, number in nodes.items():
                if from_room is not None:
                    self._room_left[machine] -= number * job.accels
                self.lasting.set(machine, min(self.room.free[machine], self._room_left[machine]))
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
        asked = (job.accels, job.min_nodes, job.exclude)
        if asked not in self.possible:
            self.possible[asked] = could_ever(self.snapshot.machines, job)
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
        free = sum(n for m, n in self.room.free.items() if m not in job.exclude)
        return f"next in line; needs {needed(job)}, {free} free now{makes_way}"


def needed(job: QueuedJob) -> str:
    where = f" outside {', '.join(sorted(job.exclude))}" if job.exclude else ""
    return (f"{job.min_nodes} × {job.accels} slots" if job.min_nodes > 1 else _slots(job.accels)) + where


def _is_soon(reserved: Reservation, policy: Policy) -> bool:
    return reserved.starts_in_s is not None and reserved.starts_in_s <= policy.spare_s


def _machines_text(job: QueuedJob) -> str:
    return f"needs {needed(job)}: more than all machines that are up now"


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
