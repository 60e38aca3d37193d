"""Free slots of each machine, and which of them a gang gets.

A gang goes to the machine with the fewest free slots that holds all of it, else to the emptiest machines first, so that it
spans few machines. The choice is deterministic: it depends only on the numbers and on the machines' names and kinds.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from enum import Enum

from shoal.server.scheduler.kinds import Choice, Kinds, by_zone
from shoal.server.scheduler.model import QueuedJob

Nodes = dict[str, int]
"""Machine → number of nodes."""
Largest = Callable[[str], int]
_Level = tuple[int, int]
"""Number of free slots of a machine, and of those in its best island."""


class _Rank(Enum):
    """Suitability of a machine that holds a node."""

    ONE_ISLAND = "one island"
    """The machine is in use, and one island of it holds the node."""
    WHOLE = "whole"
    """All of the machine is free."""
    SPLIT = "split"
    """The node would be spread over several islands."""


class FreeSlots:
    """Number of free slots on each machine, grouped by the machines' kinds."""

    def __init__(self, free: Mapping[str, int], kinds: Kinds, largest: Largest | None = None):
        """Set up. `largest` returns the number of free slots in the best island of a machine; None: there are no islands."""
        self.free = dict(free)
        self.total = sum(free.values())
        self._kinds = kinds
        parts: dict[str, dict[str, int]] = {}
        for machine, count in free.items():
            parts.setdefault(kinds.of[machine], {})[machine] = count
        self._parts = {kind: _KindFreeSlots(part, kinds, largest) for kind, part in parts.items()}
        self._refused: set[tuple[object, ...]] = set()
        """Requests for gangs of several models that did not fit."""

    def set(self, machine: str, count: int) -> None:
        """Set the free slots of a machine. The count may only decrease: refusals of `choose` are cached."""
        if count != self.free[machine]:
            self.total += count - self.free[machine]
            self.free[machine] = count
            self._parts[self._kinds.of[machine]].set(machine, count)

    def reserve(self, job: QueuedJob, nodes: Mapping[str, int]) -> None:
        for machine, number in nodes.items():
            self.set(machine, self.free[machine] - number * job.accels)

    def is_full(self, choice: Choice) -> bool:
        """Return whether every slot of these kinds is taken."""
        if not self.total:
            return True
        parts = self._parts
        if choice.only is not None:
            return choice.only not in parts or not parts[choice.only].total
        return not any(parts[kind].total for kind in choice.kinds if kind in parts)

    def choose(self, job: QueuedJob, most: int, choice: Choice | None = None) -> Nodes | None:
        """Return machine → number of nodes, from the job's `min_nodes` up to `most`; None if it does not fit."""
        parts, choice = self._parts, choice or self._kinds.choice(job)
        if choice.only is not None:
            return parts[choice.only].choose(job, most) if choice.only in parts else None
        found = _preferred(choice, job, most, lambda kind: parts[kind].choose(job, most) if kind in parts else None)
        if not job.mixed_models or _count(found) == most:
            return found
        asked = (job.accels, job.min_nodes, job.exclude, job.labels, choice.kinds)
        if found is None and asked in self._refused:
            return None
        found = _of_several_models(self.free, job, most, self._kinds, choice, found)
        if found is None:
            self._refused.add(asked)
        return found


class _KindFreeSlots:
    """Free slots of the machines of one kind, indexed by the number of free slots: no search over all machines."""

    def __init__(self, free: dict[str, int], kinds: Kinds, largest: Largest | None = None):
        self.free, self._kinds, self._largest = free, kinds, largest
        self.total = sum(free.values())
        self._levels: dict[_Level, list[str]] = {}
        self._level: dict[str, _Level] = {}
        for name in sorted(free):
            level = self._level[name] = self._level_of(name)
            self._levels.setdefault(level, []).append(name)  # sorted lists are heaps
        self._refused: set[tuple[int, int, frozenset[str], frozenset[str]]] = set()

    def set(self, machine: str, count: int) -> None:
        self.total += count - self.free[machine]
        self.free[machine] = count
        level = self._level[machine] = self._level_of(machine)
        heapq.heappush(self._levels.setdefault(level, []), machine)

    def _level_of(self, machine: str) -> _Level:
        count = self.free[machine]
        return count, min(count, self._largest(machine)) if self._largest else count

    def choose(self, job: QueuedJob, most: int) -> Nodes | None:
        asked = (job.accels, job.min_nodes, job.exclude, job.labels)
        if self.total < job.min_slots or asked in self._refused:
            return None
        if most == 1 and not (job.exclude or job.prefer or job.labels):
            tightest = self._tightest(job.accels)
            found = {tightest: 1} if tightest is not None else None
        else:
            found = _of_one_kind(self.free, job, most, self._kinds.barred(job), self._rank)
        if found is None:
            self._refused.add(asked)
        return found

    def _tightest(self, accels: int) -> str | None:
        """Return the machine with the fewest free slots that holds a node.

        If its free slots are in several islands, a larger one where they are in one goes first, unless that is entirely free:
        such machines are kept for large gangs.
        """
        tightest = None
        for level in sorted(level for level in self._levels if level[0] >= accels):
            name = self._first(level)
            if name is None:
                continue
            rank = self._rank(name, accels)
            if rank is _Rank.ONE_ISLAND or (rank is _Rank.WHOLE and tightest is None):
                return name
            tightest = tightest or name
        return tightest

    def _first(self, level: _Level) -> str | None:
        names = self._levels[level]
        while names:
            if self._level[names[0]] == level:
                return names[0]
            heapq.heappop(names)  # outdated: its level has changed, and it is listed under the new one
        del self._levels[level]
        return None

    def _rank(self, machine: str, accels: int) -> _Rank:
        if self._level[machine][1] < accels:
            return _Rank.SPLIT
        return _Rank.WHOLE if self._kinds.is_whole(machine, self.free[machine]) else _Rank.ONE_ISLAND


def choose(
    free: Mapping[str, int], job: QueuedJob, most: int, kinds: Kinds, choice: Choice | None = None
) -> Nodes | None:
    """Return what `FreeSlots.choose` would return for these free slots; cheaper than a `FreeSlots` for a single call."""

    barred = kinds.barred(job)

    def in_kind(kind: str) -> Nodes | None:
        return _of_one_kind({m: n for m, n in free.items() if kinds.of[m] == kind}, job, most, barred)

    choice = choice or kinds.choice(job)
    found = _preferred(choice, job, most, in_kind)
    if not job.mixed_models or _count(found) == most:
        return found
    return _of_several_models(free, job, most, kinds, choice, found)


def fits(free: Iterable[tuple[str, int]], job: QueuedJob, kinds: Kinds) -> bool:
    """Return whether a job's smallest gang fits on these (machine, slots) pairs, within one zone and kind."""
    nodes: dict[tuple[str, str], int] = {}
    for machine, count in free:
        if kinds.may_use(job, machine):
            key = kinds.group(job, machine)
            nodes[key] = nodes.get(key, 0) + count // job.accels
    return max(nodes.values(), default=0) >= job.min_nodes


def _preferred(choice: Choice, job: QueuedJob, most: int, in_kind: Callable[[str], Nodes | None]) -> Nodes | None:
    """Return nodes from the first group of kinds that has room, or from the first that has a preferred machine."""
    first = None
    for group in choice.groups:
        found = _of_group(group, job, most, in_kind)
        if found is not None and (not job.prefer or not job.prefer.isdisjoint(found)):
            return found
        first = first or found
    return first


def _of_several_models(
    free: Mapping[str, int], job: QueuedJob, most: int, kinds: Kinds, choice: Choice, uniform: Nodes | None
) -> Nodes | None:
    """Return nodes whose models may differ, if they are more than those of one model (`uniform`), else those."""
    barred = kinds.barred(job)
    is_preferred = uniform is not None and not job.prefer.isdisjoint(uniform)
    for group in choice.groups:
        candidates = []
        for alike in dict.fromkeys(kinds.alike(kind, group, job) for kind in group):
            usable = {m: n for m, n in free.items() if kinds.of[m] in alike}
            candidates.append(_of_one_kind(usable, job, most, barred))
        found = _largest(job, candidates)
        if uniform is not None and not {kinds.of[m] for m in uniform}.isdisjoint(group):
            return found if _count(found) > _count(uniform) else uniform
        if found is not None and not is_preferred:
            return found
    return uniform


def _count(nodes: Nodes | None) -> int:
    return sum(nodes.values()) if nodes else 0


def _of_group(
    group: tuple[str, ...], job: QueuedJob, most: int, in_kind: Callable[[str], Nodes | None]
) -> Nodes | None:
    """Return the largest of the candidates of equally good kinds; the first that has all the nodes it may have will do."""
    candidates: list[Nodes | None] = []
    for kind in group:
        nodes = in_kind(kind)
        if nodes and not job.prefer and sum(nodes.values()) == most:
            return nodes if not candidates else _largest(job, [*candidates, nodes])
        candidates.append(nodes)
    return _largest(job, candidates)


def _largest(job: QueuedJob, found: Iterable[Nodes | None]) -> Nodes | None:
    """Return the candidate with a preferred machine and the most nodes; the first of equals."""
    return max(
        (nodes for nodes in found if nodes),
        key=lambda nodes: (not job.prefer.isdisjoint(nodes), sum(nodes.values())),
        default=None,
    )


def _of_one_kind(
    free: Mapping[str, int],
    job: QueuedJob,
    most: int,
    barred: frozenset[str],
    rank: Callable[[str, int], _Rank] | None = None,
) -> Nodes | None:
    accels = job.accels
    fitting = [(m, n // accels) for m, n in free.items() if n >= accels and m not in barred]
    # Sorted by zone: the server's own machines (zone "") come before those of a cluster.
    zones = sorted(by_zone(fitting).items())
    return _largest(job, [_in_zone(part, free, job, most, rank) for _, part in zones])


def _in_zone(
    fitting: Mapping[str, int],
    free: Mapping[str, int],
    job: QueuedJob,
    most: int,
    rank: Callable[[str, int], _Rank] | None = None,
) -> Nodes | None:
    wanted = min(most, sum(fitting.values()))
    if wanted < job.min_nodes:
        return None
    whole = [m for m, n in fitting.items() if n >= wanted]
    liked = [m for m in whole if m in job.prefer]
    if liked or (whole and not any(m in job.prefer for m in fitting)):
        tightest = min(liked or whole, key=lambda m: (free[m], m))
        if rank is not None and rank(tightest, job.accels) is _Rank.SPLIT:
            better = [m for m in liked or whole if rank(m, job.accels) is _Rank.ONE_ISLAND]
            tightest = min(better, key=lambda m: (free[m], m), default=tightest)
        return {tightest: wanted}
    return _spread(fitting, job, wanted)


def _spread(fitting: Mapping[str, int], job: QueuedJob, wanted: int) -> Nodes:
    nodes: Nodes = {}
    for machine in sorted(fitting, key=lambda m: (m not in job.prefer, -fitting[m], m)):
        nodes[machine] = min(wanted, fitting[machine])
        wanted -= nodes[machine]
        if wanted == 0:
            break
    return nodes
