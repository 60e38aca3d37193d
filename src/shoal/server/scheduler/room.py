"""Free slots, machine by machine, and which of them a gang gets: the tightest machine that holds all of it, else the
emptiest ones first, so that it is spread least. All choices are determined by the numbers and the machines' names and kinds."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping

from shoal.server.scheduler.kinds import Choice, Kinds, by_zone, zone
from shoal.server.scheduler.model import QueuedJob

Nodes = dict[str, int]
"""Machine → number of nodes."""


class Room:
    """How many slots are free on each machine, kept apart by the machines' kinds."""

    def __init__(self, free: Mapping[str, int], kinds: Kinds):
        self.free = dict(free)
        self.total = sum(free.values())
        self._kinds = kinds
        parts: dict[str, dict[str, int]] = {}
        for machine, count in free.items():
            parts.setdefault(kinds.of[machine], {})[machine] = count
        self._parts = {kind: _KindRoom(part) for kind, part in parts.items()}

    def set(self, machine: str, count: int) -> None:
        """Only ever less than before: what was refused stays refused."""
        if count != self.free[machine]:
            self.total += count - self.free[machine]
            self.free[machine] = count
            self._parts[self._kinds.of[machine]].set(machine, count)

    def take(self, job: QueuedJob, nodes: Mapping[str, int]) -> None:
        for machine, number in nodes.items():
            self.set(machine, self.free[machine] - number * job.accels)

    def is_full(self, choice: Choice) -> bool:
        """True if every slot of these kinds is taken."""
        if not self.total:
            return True
        parts = self._parts
        if choice.only is not None:
            return choice.only not in parts or not parts[choice.only].total
        return not any(parts[kind].total for kind in choice.kinds if kind in parts)

    def choose(self, job: QueuedJob, most: int, choice: Choice | None = None) -> Nodes | None:
        """Machine → number of nodes, from the job's smallest number up to `most`; None if there is no room."""
        parts, choice = self._parts, choice or self._kinds.choice(job)
        if choice.only is not None:
            return parts[choice.only].choose(job, most) if choice.only in parts else None
        return _preferred(choice, job, lambda kind: parts[kind].choose(job, most) if kind in parts else None)


class _KindRoom:
    """Free slots of machines of one kind. Machines with equally many free are found without looking at all."""

    def __init__(self, free: dict[str, int]):
        self.free = free
        self.total = sum(free.values())
        self._levels: dict[int, list[str]] = {}
        for name in sorted(free):
            self._levels.setdefault(free[name], []).append(name)  # sorted lists are heaps
        self._refused: set[tuple[int, int, frozenset[str]]] = set()

    def set(self, machine: str, count: int) -> None:
        self.total += count - self.free[machine]
        self.free[machine] = count
        heapq.heappush(self._levels.setdefault(count, []), machine)

    def choose(self, job: QueuedJob, most: int) -> Nodes | None:
        asked = (job.accels, job.min_nodes, job.exclude)
        if self.total < job.min_slots or asked in self._refused:
            return None
        if most == 1 and not job.exclude and not job.prefer:
            tightest = self._tightest(job.accels)
            found = {tightest: 1} if tightest is not None else None
        else:
            found = _of_one_kind(self.free, job, most)
        if found is None:
            self._refused.add(asked)
        return found

    def _tightest(self, accels: int) -> str | None:
        for count in sorted(c for c in self._levels if c >= accels):
            names = self._levels[count]
            while names:
                if self.free[names[0]] == count:
                    return names[0]
                heapq.heappop(names)  # it has another number by now, and stands there too
            del self._levels[count]
        return None


def choose(free: Mapping[str, int], job: QueuedJob, most: int, kinds: Kinds) -> Nodes | None:
    """The same as `Room.choose`, for a single question."""

    def in_kind(kind: str) -> Nodes | None:
        return _of_one_kind({m: n for m, n in free.items() if kinds.of[m] == kind}, job, most)

    return _preferred(kinds.choice(job), job, in_kind)


def fits(free: Iterable[tuple[str, int]], job: QueuedJob, kinds: Kinds) -> bool:
    nodes: dict[tuple[str, str], int] = {}
    for machine, count in free:
        if kinds.may_use(job, machine):
            key = (zone(machine), kinds.of[machine])
            nodes[key] = nodes.get(key, 0) + count // job.accels
    return max(nodes.values(), default=0) >= job.min_nodes


def _preferred(choice: Choice, job: QueuedJob, in_kind: Callable[[str], Nodes | None]) -> Nodes | None:
    """From the first group of kinds that has room; where machines are preferred, from the first that has them."""
    first = None
    for group in choice.groups:
        found = in_kind(group[0]) if len(group) == 1 else _largest(job, [in_kind(kind) for kind in group])
        if found is not None and (not job.prefer or not job.prefer.isdisjoint(found)):
            return found
        first = first or found
    return first


def _largest(job: QueuedJob, found: Iterable[Nodes | None]) -> Nodes | None:
    """The first of the best."""
    return max(
        (nodes for nodes in found if nodes),
        key=lambda nodes: (not job.prefer.isdisjoint(nodes), sum(nodes.values())),
        default=None,
    )


def _of_one_kind(free: Mapping[str, int], job: QueuedJob, most: int) -> Nodes | None:
    fitting = ((m, n // job.accels) for m, n in free.items() if n >= job.accels and m not in job.exclude)
    # Sorted by zone: machines of our own come before those of a cluster.
    return _largest(job, [_in_zone(part, free, job, most) for _, part in sorted(by_zone(fitting).items())])


def _in_zone(fitting: Mapping[str, int], free: Mapping[str, int], job: QueuedJob, most: int) -> Nodes | None:
    wanted = min(most, sum(fitting.values()))
    if wanted < job.min_nodes:
        return None
    whole = [m for m, n in fitting.items() if n >= wanted]
    liked = [m for m in whole if m in job.prefer]
    if liked or (whole and not any(m in job.prefer for m in fitting)):
        return {min(liked or whole, key=lambda m: (free[m], m)): wanted}
    return _spread(fitting, job, wanted)


def _spread(fitting: Mapping[str, int], job: QueuedJob, wanted: int) -> Nodes:
    nodes: Nodes = {}
    for machine in sorted(fitting, key=lambda m: (m not in job.prefer, -fitting[m], m)):
        nodes[machine] = min(wanted, fitting[machine])
        wanted -= nodes[machine]
        if wanted == 0:
            break
    return nodes
