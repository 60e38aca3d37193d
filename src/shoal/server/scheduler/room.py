"""Free slots, machine by machine, and which of them a gang gets: the tightest machine that holds all of it, else the
emptiest ones first, so that it is spread least. All choices are determined by the numbers and the machines' names."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from shoal.server.scheduler.model import QueuedJob


class Room:
    """How many slots are free on each machine. Machines with equally many free are found without looking at all."""

    def __init__(self, free: Mapping[str, int]):
        self.free = dict(free)
        self.total = sum(free.values())
        self._levels: dict[int, list[str]] = {}
        for name in sorted(free):
            self._levels.setdefault(free[name], []).append(name)  # sorted lists are heaps
        self._refused: set[tuple[int, int, frozenset[str]]] = set()

    def set(self, machine: str, count: int) -> None:
        """Only ever less than before: what was refused stays refused."""
        if count != self.free[machine]:
            self.total += count - self.free[machine]
            self.free[machine] = count
            heapq.heappush(self._levels.setdefault(count, []), machine)

    def take(self, job: QueuedJob, nodes: Mapping[str, int]) -> None:
        for machine, number in nodes.items():
            self.set(machine, self.free[machine] - number * job.accels)

    def choose(self, job: QueuedJob, most: int) -> dict[str, int] | None:
        """Machine → number of nodes, from the job's smallest number up to `most`; None if there is no room."""
        asked = (job.accels, job.min_nodes, job.exclude)
        if self.total < job.min_slots or asked in self._refused:
            return None
        if most == 1 and not job.exclude and not job.prefer:
            tightest = self._tightest(job.accels)
            found = {tightest: 1} if tightest is not None else None
        else:
            found = choose(self.free, job, most)
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


def zone(machine: str) -> str:
    """What stands before the colon in its name. A gang is all in one zone: a cluster with a queue of its own is one."""
    return machine.partition(":")[0] if ":" in machine else ""


def by_zone(counts: Iterable[tuple[str, int]]) -> dict[str, dict[str, int]]:
    zones: dict[str, dict[str, int]] = {}
    for machine, count in counts:
        zones.setdefault(zone(machine), {})[machine] = count
    return zones


def choose(free: Mapping[str, int], job: QueuedJob, most: int) -> dict[str, int] | None:
    fitting = ((m, n // job.accels) for m, n in free.items() if n >= job.accels and m not in job.exclude)
    found = [nodes for _, part in sorted(by_zone(fitting).items()) if (nodes := _in_zone(part, free, job, most))]
    # The first of the best: machines of our own come before those of a cluster.
    return max(found, key=lambda nodes: (any(m in job.prefer for m in nodes), sum(nodes.values())), default=None)


def _in_zone(fitting: Mapping[str, int], free: Mapping[str, int], job: QueuedJob, most: int) -> dict[str, int] | None:
    wanted = min(most, sum(fitting.values()))
    if wanted < job.min_nodes:
        return None
    whole = [m for m, n in fitting.items() if n >= wanted]
    liked = [m for m in whole if m in job.prefer]
    if liked or (whole and not any(m in job.prefer for m in fitting)):
        return {min(liked or whole, key=lambda m: (free[m], m)): wanted}
    return _spread(fitting, job, wanted)


def fits(free: Iterable[tuple[str, int]], job: QueuedJob) -> bool:
    nodes = by_zone((m, n // job.accels) for m, n in free if m not in job.exclude)
    return any(sum(part.values()) >= job.min_nodes for part in nodes.values())


def _spread(fitting: Mapping[str, int], job: QueuedJob, wanted: int) -> dict[str, int]:
    nodes: dict[str, int] = {}
    for machine in sorted(fitting, key=lambda m: (m not in job.prefer, -fitting[m], m)):
        nodes[machine] = min(wanted, fitting[machine])
        wanted -= nodes[machine]
        if wanted == 0:
            break
    return nodes
