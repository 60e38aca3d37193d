"""Pure decision on a `QueueState`: which queued jobs start now, where, and which running jobs are preempted.

Jobs are considered in the order of `order.ranked`. The first job that does not fit gets a reservation. Jobs behind it start
only if they do not delay it: on slots it will not need, or because they end before it starts. Jobs that cannot run on the
same kinds of slots do not compete, so there is one reservation per such kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from shoal.server.scheduler.avoid import choose_apart, failed_devices, fits_apart, last_resort, without_failed
from shoal.server.scheduler.free_slots import FreeSlots
from shoal.server.scheduler.grow import growth
from shoal.server.scheduler.kinds import ANY, AUTO, Choice, Kinds
from shoal.server.scheduler.model import (
    Decision,
    Hold,
    MachineState,
    Placement,
    Policy,
    QueuedJob,
    QueueState,
    Reservation,
    RunningJob,
    Share,
)
from shoal.server.scheduler.model_quotas import ModelQuotas
from shoal.server.scheduler.order import ranked
from shoal.server.scheduler.reserve import is_brief, reserve, victims
from shoal.server.scheduler.share import held_slots
from shoal.server.scheduler.topology import Topology

__all__ = [
    "Decision",
    "Hold",
    "MachineState",
    "Placement",
    "Policy",
    "QueueState",
    "QueuedJob",
    "Reservation",
    "RunningJob",
    "Share",
    "decide",
    "largest_possible",
]  # fmt: skip


_MOST_NAMED = 3


def decide(state: QueueState) -> Decision:
    """Return the starts, preemptions, reservations and waiting reasons for one state."""
    return _Pass(state).run()


def largest_possible(machines: Sequence[MachineState], job: QueuedJob) -> tuple[int, int]:
    """Return (nodes, accels) of the largest request like this job's that the empty pool could run.

    Its number of slots per node is kept if any machine has as many.
    """
    kinds, accels = Kinds(machines), job.accels
    # With "any" the choice does not depend on the size, which is what is sought here.
    choice = kinds.allowed(replace(job, device=ANY) if job.device == AUTO else job)
    barred = kinds.barred(job)
    usable = [m for m in machines if kinds.of[m.name] in choice and m.name not in barred]
    accels = min(accels, max((m.slots for m in usable), default=0))
    nodes: dict[tuple[str, str], int] = {}
    for m in usable if accels else ():
        group = kinds.group(job, m.name)
        nodes[group] = nodes.get(group, 0) + m.slots // accels
    return max(nodes.values(), default=0), accels


class _Pass:
    def __init__(self, state: QueueState):
        self.state, self.decision = state, Decision()
        self.slots = {m.name: m.free for m in state.machines}
        self.kinds = Kinds.seen(state)
        self.up = Kinds(state.machines) if state.away else self.kinds
        """Only the machines on which jobs can start now."""
        self.topology = Topology(state.machines)
        self.room = FreeSlots({m: len(s) for m, s in self.slots.items()}, self.kinds, self._largest)
        self.lasting: FreeSlots | None = None
        """Slots that no reservation needs, so a job on them may run for any time; None before the first reservation."""
        self._room_left: dict[str, int] = {}
        """Machine of a reserved kind → slots there that jobs without a time limit may still get."""
        held = held_slots(state.running)
        self.held = held
        self.left = {w: s.quota - held[w] for w, s in state.shares.items() if s.quota is not None}
        self.models = ModelQuotas(state.shares, state.running, self.kinds)
        self.full: set[str] = set()
        """Workspaces whose next job waits for the quota; their later jobs wait as well."""
        self.latest: dict[frozenset[str], float | None] = {}
        """Cached results of `_latest_end`; cleared with every new reservation."""
        self.possible: dict[tuple[object, ...], bool] = {}

    def run(self) -> Decision:
        waiting, left, kinds = self.decision.waiting, self.left, self.kinds
        for job in ranked(self.state):
            choice = kinds.choice(job)
            if job.workspace not in left and self.room.is_full(choice) and self._has_head(choice):
                waiting[job.job_id] = f"place {len(waiting) + 1} in the queue"  # the long tail of a long queue
            elif self._in_quota(job):
                self._consider(job, choice)
        waiting.update(self.state.held)
        self.decision.holds.update(dict.fromkeys(self.state.held, Hold.AFTER))
        self.decision.grows.update(growth(self.state, self.decision, self.room.free, self.left, self.kinds))
        return self.decision

    @property
    def _largest(self) -> Callable[[str], int] | None:
        topology, slots = self.topology, self.slots
        return (lambda machine: topology.largest(machine, slots[machine])) if topology else None

    def _has_head(self, choice: Choice) -> bool:
        return self._latest_end(choice.kinds) is not None

    def _latest_end(self, kinds: frozenset[str]) -> float | None:
        """Return the seconds until the earliest reserved start on these kinds; -inf if unknown, None without a reservation."""
        if kinds not in self.latest:
            kept = [found.starts_in_s for found in self.decision.reserved if not kinds.isdisjoint(found.kinds)]
            self.latest[kinds] = min((float("-inf") if s is None else s for s in kept), default=None)
        return self.latest[kinds]

    def _consider(self, job: QueuedJob, choice: Choice) -> None:
        whole = choice
        choice, most = self.models.within(job, whole)
        if job.workspace in self.left:
            most = min(most, self.left[job.workspace] // job.accels)
        if job.avoided is not None and job.avoided.never and not self._is_possible(job):
            self._hold(job, Hold.MACHINES, self._machines_text(job))
            return
        if choice.kinds != whole.kinds and not self._starts_within(job, most, choice):
            # Without a reservation: it might be on slots that the quota keeps from the job, and would hold off others there.
            self._hold(job, Hold.QUOTA, self.models.text(job, whole))
            return
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
        elif is_brief(job, until, self.state.policy) and (nodes := self._choose(self.room, job, most, choice)):
            self._start(job, nodes)
        elif self._is_possible(job):
            self._turn(job)
        else:
            self._hold(job, Hold.MACHINES, self._machines_text(job))

    def _starts_within(self, job: QueuedJob, most: int, choice: Choice) -> bool:
        """Return whether a job could start now on the kinds that the quotas of its workspace leave."""
        return bool(choice.kinds) and self._choose(self.room, job, most, choice) is not None

    def _choose(self, room: FreeSlots, job: QueuedJob, most: int, choice: Choice) -> dict[str, int] | None:
        if job.avoided is None:
            return room.choose(job, most, choice)
        return choose_apart(room.free, self.slots, self.state.machines, job, most, self.state.now, self.kinds, choice)

    def _pauses(self, job: QueuedJob) -> bool:
        return job.avoided is not None and self.state.now < job.avoided.until

    def _pause_text(self, job: QueuedJob) -> str:
        assert job.avoided is not None  # noqa: S101
        left_s = math.ceil(job.avoided.until - self.state.now)
        names = ", ".join(sorted(job.avoided.machines))
        return f"failed on {names} because of a fault there; retried there in {left_s} s if no other machine is free"

    def _hold_place(self, job: QueuedJob) -> None:
        """Reserve a start for the first job that must wait for slots of its kinds; later jobs must not delay it."""
        if not self._is_possible(job):
            self._hold(job, Hold.MACHINES, self._machines_text(job))
            return
        reserved = self._reserve(job)
        self.decision.reserved.append(reserved)
        self.latest.clear()
        of, lasting = self.kinds.of, self.lasting or FreeSlots(self.room.free, self.kinds, self._largest)
        self.lasting = lasting
        for machine, count in reserved.room.items():
            if of[machine] in reserved.kinds:
                self._room_left[machine] = count
                lasting.set(machine, min(self.room.free[machine], count))
        self._hold(job, Hold.SLOTS, self._head_text(job))

    def _reserve(self, job: QueuedJob) -> Reservation:
        running, policy = self.state.running, self.state.policy
        ending = {r.job_id: policy.grace_of(r.asked) for r in running if r.stopping}
        failed = failed_devices(job, self.kinds)
        free = without_failed(self.room.free, self.slots, failed)
        reserved = reserve(free, self._all_running(), job, ending, self.kinds)
        if policy.preempt and (reserved is None or not _is_soon(reserved, policy)):
            making_way = self._victims(job, free, failed)
            if making_way:
                self.decision.preempts.update({v.job_id: job.job_id for v in making_way})
                ending |= {v.job_id: policy.grace_of(v.asked) for v in making_way}
                reserved = reserve(free, self._all_running(), job, ending, self.kinds)
        if reserved is not None:
            # Devices that failed this job are for the others.
            left = {m: n + self.room.free[m] - free[m] for m, n in reserved.room.items()}
            return replace(reserved, room=left) if failed else reserved
        # Slots are held by something that is not in `running`.
        nothing: Mapping[str, int] = dict.fromkeys(self.slots, 0)
        return Reservation(job_id=job.job_id, starts_in_s=None, nodes={}, room=nothing, kinds=self.kinds.allowed(job))

    def _victims(self, job: QueuedJob, free: Mapping[str, int], failed: Mapping[str, set[int]]) -> list[RunningJob]:
        """Return the jobs to preempt, none of them on machines where that might free only devices that failed this job.

        The counts of `victims` do not tell which slots a running job holds.
        """
        outside = replace(job, exclude=job.exclude | frozenset(failed)) if failed else job
        if self.kinds.allowed(outside) != self.kinds.allowed(job):
            return []
        return victims(free, self.state.running, outside, self.kinds)

    def _all_running(self) -> list[RunningJob]:
        """Return the running jobs together with those that this pass starts."""
        by_id = {job.job_id: job for job in self.state.queue} if self.decision.starts else {}
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
                    started=self.state.now,
                    ends_in_s=min(lengths, default=None),
                )
            )
        return [*self.state.running, *started]

    def _start(self, job: QueuedJob, nodes: dict[str, int], *, for_good: bool = False) -> None:
        """Record the start of a job. `for_good`: it uses slots no reservation needs, so it may run past reserved starts."""
        gang = _gang(self.slots, nodes, job, self.kinds, self.topology)
        self.room.reserve(job, nodes)
        if self.lasting is not None:
            for machine, number in nodes.items():
                left = self._room_left.get(machine, self.room.free[machine])
                if for_good and machine in self._room_left:
                    self._room_left[machine] = left = left - number * job.accels
                self.lasting.set(machine, min(self.room.free[machine], left))
        self.models.reserve(job, nodes)
        if job.workspace in self.left:
            self.left[job.workspace] -= sum(nodes.values()) * job.accels
        self.decision.starts.append((job.job_id, gang))

    def _in_quota(self, job: QueuedJob) -> bool:
        if job.workspace not in self.left:
            return True
        quota = self.state.shares[job.workspace].quota or 0
        if job.workspace not in self.full and job.min_slots <= self.left[job.workspace]:
            return True
        if job.min_slots <= quota:  # a job larger than the quota itself must not block the others
            self.full.add(job.workspace)
        used = quota - self.left[job.workspace]
        self._hold(job, Hold.QUOTA, f"its workspace may hold {_slots(quota)} at once, and holds {used} now")
        return False

    def _is_possible(self, job: QueuedJob) -> bool:
        never = job.avoided.never if job.avoided is not None else frozenset()
        wish = (job.device, job.gpu, job.gpu_memory, job.mixed_models)
        asked = (job.accels, job.min_nodes, job.exclude, wish, job.labels, never)
        if asked not in self.possible:
            if never:
                self.possible[asked] = fits_apart(self.state.machines, job, self.kinds)
                return self.possible[asked]
            self.possible[asked] = self.up.could_run(job, self.kinds.allowed(job))
        return self.possible[asked]

    def _turn(self, job: QueuedJob) -> None:
        waiting = self.decision.waiting
        waiting[job.job_id] = f"place {len(waiting) + 1} in the queue"

    def _hold(self, job: QueuedJob, hold: Hold, text: str) -> None:
        self.decision.holds[job.job_id] = hold
        self.decision.waiting[job.job_id] = text

    def _head_text(self, job: QueuedJob) -> str:
        number = len(self.decision.preempts)
        preempts = f"; {number} job{'s' if number > 1 else ''} of lower priority will be preempted" if number else ""
        free = sum(n for m, n in self.room.free.items() if self.kinds.may_use(job, m))
        return f"next in line; needs {needed(job, self.kinds)}, {free} free now{preempts}"

    def _machines_text(self, job: QueuedJob) -> str:
        """Return why the machines that are up can never run the job, naming machines that are down and could."""
        kinds, needs = self.kinds, f"needs {needed(job, self.kinds)}"
        if failed := failed_devices(job, kinds):
            names = "; ".join(f"{m}: {', '.join(map(str, sorted(slots)))}" for m, slots in sorted(failed.items()))
            needs += f" on devices where it has not failed before (it failed on {names})"
        away = [f"{m.name} is {m.state}" for m in self.state.away if m.slots and kinds.may_use(job, m.name)]
        out = f" ({', '.join(away[:_MOST_NAMED])}{', …' if len(away) > _MOST_NAMED else ''})" if away else ""
        if not any(m.slots and kinds.may_use(job, m.name) for m in self.state.machines) and kinds.words(job):
            return f"{needs}: no machine with {kinds.words(job)}slots is up now{out}"
        if kinds.are_several and job.device in (AUTO, ANY):
            one = "of one kind and model" if kinds.are_several_models and not job.mixed_models else "of one kind"
            return f"{needs} {one}: more than the machines that are up now have{out}"
        return f"{needs}: more than all machines that are up now{out}"


def needed(job: QueuedJob, kinds: Kinds) -> str:
    where = f" outside {', '.join(sorted(job.exclude))}" if job.exclude else ""
    where += f" with {', '.join(sorted(job.labels))}" if job.labels else ""
    word = kinds.words(job)
    each = f"{job.accels} {word}slot{'s' if job.accels != 1 else ''}"
    return (f"{job.min_nodes} × {job.accels} {word}slots" if job.min_nodes > 1 else each) + where


def _is_soon(reserved: Reservation, policy: Policy) -> bool:
    return reserved.starts_in_s is not None and reserved.starts_in_s <= policy.spare_s


def _gang(
    slots: dict[str, list[int]], nodes: dict[str, int], job: QueuedJob, kinds: Kinds, topology: Topology
) -> list[Placement]:
    gang = []
    for machine, number in nodes.items():
        for _ in range(number):
            ordered = last_resort(machine, slots[machine], job, kinds)
            # Slots that are to be avoided come last; they are taken only if the others are too few.
            bad = {slot for m, slot in job.avoided.slots if m == machine} if job.avoided is not None else set()
            good = [slot for slot in ordered if slot not in bad] if bad else ordered
            taken = topology.pick(machine, good, job.accels) if len(good) >= job.accels else ordered[: job.accels]
            gang.append(Placement(machine, tuple(taken)))
            slots[machine] = [slot for slot in slots[machine] if slot not in taken]
    return gang


def _slots(count: int) -> str:
    return f"{count} slot{'s' if count != 1 else ''}"
