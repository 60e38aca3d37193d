"""How a training is run, without a change to it: by itself (debug), many of them over a pool of machines (auto), or one over several
machines (distributed). Without a server; machines are reached by ssh, this one without.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from shoal.core.durations import duration
from shoal.core.errors import CanNeverRun, UsageError
from shoal.train.gangs import Gang, Result, Task, wait_for_news
from shoal.train.preflight import Needs, Place, Ready, check

_LOOK_S = 0.5
"""Between looks at whether the user wants it all to stop, and at new scores."""


@dataclass(slots=True, kw_only=True)
class Desk:
    """Where news goes, and where a stop comes from."""

    tell: Callable[[str], None] = print
    should_stop: Callable[[], bool] = lambda: False


def run_pool(tasks: Sequence[Task], places: Sequence[Place], needs: Needs, desk: Desk) -> list[Result]:
    """Auto mode: every task on one machine, as many at a time as there are slots for. Results in the order of the tasks."""
    if not tasks:
        raise UsageError("there is nothing to run")
    pool = _Pool(tasks, check(places, needs), needs, desk)
    return pool.run()


def run_distributed(task: Task, places: Sequence[Place], needs: Needs, desk: Desk) -> Result:
    """Distributed mode: one task over all the machines, the first of `places` leading."""
    found = check(places, needs)
    head, *_ = found
    if len(found) > 1 and head.place.host.is_here and head.address.startswith("127."):
        found = _reachable_here(found)
    desk.tell(f"'{task.name}' starts on {', '.join(str(r.place.host) for r in found)}.")
    gang = Gang(task, found, lambda r: environment(r, task=task, needs=needs, slots=r.place.slots[: task.workers]))
    best, is_told = _Best(desk), False
    with _stopping(lambda: [gang], desk):
        while not gang.is_over:
            wait_for_news([gang], _LOOK_S)
            gang.look_after()
            best.look(task)
            if not is_told and desk.should_stop():
                is_told = True
                gang.stop()
    return gang.close()


def environment(ready: Ready, *, task: Task, needs: Needs, slots: Sequence[int]) -> dict[str, str]:
    """Of the workers on one machine: its GPUs and its network interface."""
    env = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, slots))} if needs.gpus else {}
    if ready.interface:
        env |= {"GLOO_SOCKET_IFNAME": ready.interface, "NCCL_SOCKET_IFNAME": ready.interface}
    return {**env, **task.env_at(ready, slots)}


def remaining_s(each_s: float, *, waiting: Sequence[int], running: Sequence[tuple[int, float]], slots: int) -> float:
    """Until all is done, if every task takes as long as the others did: as the slots allow, and no task in less than that.

    Of those that wait the slots they need, of those that run also how long they have.
    """
    left = [(number, max(0.0, each_s - ran_s)) for number, ran_s in running]
    work = sum(number * seconds for number, seconds in left) + each_s * sum(waiting)
    return max(work / slots, max((seconds for _, seconds in left), default=0.0), each_s if waiting else 0.0)


@dataclass(slots=True)
class _Running:
    gang: Gang
    number: int
    ready: Ready
    slots: list[int]


class _Pool:
    """Decides which task goes where; the gangs do the rest."""

    def __init__(self, tasks: Sequence[Task], found: Sequence[Ready], needs: Needs, desk: Desk):
        self._waiting = list(enumerate(tasks))
        self._free = [(ready, list(ready.place.slots)) for ready in found]
        self._needs, self._desk, self._best = needs, desk, _Best(desk)
        self._running: list[_Running] = []
        self._results: dict[int, Result] = {}
        self._total, self._slots = len(tasks), sum(len(ready.place.slots) for ready in found)
        self._stopping = False
        most = max(len(slots) for _, slots in self._free)
        if too_large := [task for _, task in self._waiting if task.workers > most]:
            raise CanNeverRun(
                f"'{too_large[0].name}' needs {too_large[0].workers} slots on one machine, and none has more than {most}",
                hint="list more slots for a machine, or ask for fewer GPUs per training",
            )

    def run(self) -> list[Result]:
        with _stopping(lambda: [r.gang for r in self._running], self._desk):
            while self._waiting or self._running:
                self._start_what_fits()
                wait_for_news([r.gang for r in self._running], _LOOK_S)
                for running in self._running:
                    running.gang.look_after()
                    self._best.look(running.gang.task)
                for running in [r for r in self._running if r.gang.is_over]:
                    self._finish(running)
                if not self._stopping and self._desk.should_stop():
                    self._stop()
        return [self._results[number] for number in sorted(self._results)]

    def _start_what_fits(self) -> None:
        for number, task in list(self._waiting):
            fitting = [(ready, slots) for ready, slots in self._free if len(slots) >= task.workers]
            if not fitting:
                continue
            ready, free = max(fitting, key=lambda one: len(one[1]))
            slots = [free.pop(0) for _ in range(task.workers)]
            self._waiting.remove((number, task))
            gang = Gang(task, [ready], partial(environment, task=task, needs=self._needs, slots=slots))
            self._running.append(_Running(gang, number, ready, slots))
            self._desk.tell(
                f"Task[{number}] '{task.name}' starts on {ready.place.host}, slots {slots}; "
                f"{len(self._waiting)} tasks are waiting."
            )

    def _finish(self, running: _Running) -> None:
        self._running.remove(running)
        next(slots for ready, slots in self._free if ready is running.ready).extend(running.slots)
        result = self._results[running.number] = running.gang.close()
        left = self._total - len(self._results)
        words = {"finished": "succeeds", "failed": "fails", "stopped": "is stopped", "skipped": "is skipped"}
        score = "" if result.score is None else f", best vali_error: {result.score:.6g}"
        reason = "" if result.reason is None else f": {result.reason} (see {running.gang.task.logs})"
        self._desk.tell(
            f"Task[{running.number}] '{running.gang.task.name}' {words[result.status]}{reason}{score}, "
            f"taking {duration(result.seconds)}, remaining {left} tasks, "
            f"remaining time: {duration(0 if self._stopping else self._left_s())}"
        )

    def _left_s(self) -> float:
        ran = [result.seconds for result in self._results.values() if result.status != "skipped" and result.seconds]
        return remaining_s(
            statistics.fmean(ran) if ran else 0.0,
            waiting=[task.workers for _, task in self._waiting],
            running=[(len(r.slots), r.gang.seconds) for r in self._running],
            slots=self._slots,
        )

    def _stop(self) -> None:
        self._stopping = True
        for running in self._running:
            running.gang.stop()
        self._desk.tell(f"Stopping: {len(self._running)} running tasks save, {len(self._waiting)} are not started.")
        for number, task in self._waiting:
            self._results[number] = Result(task=task, status="stopped", seconds=0.0)
        self._waiting.clear()


@dataclass(slots=True)
class _Best:
    """Tells of a task's new best score."""

    desk: Desk
    told: dict[str, float] = field(default_factory=dict)

    def look(self, task: Task) -> None:
        score = task.score()
        if score is not None and score != self.told.get(task.name):
            self.told[task.name] = score
            self.desk.tell(f"'{task.name}' is running, best vali_error: {score:.6g}")


@contextmanager
def _stopping(running: Callable[[], Sequence[Gang]], desk: Desk) -> Iterator[None]:
    """Ctrl-C lets what runs save and stop; whatever else ends us ends it too."""
    try:
        yield
    except BaseException:
        gangs = running()
        for gang in gangs:
            gang.stop()
        if gangs:
            desk.tell(f"Stopping {len(gangs)} running tasks; they may save first.")
        for gang in gangs:
            gang.close()
        raise


def _reachable_here(found: Sequence[Ready]) -> list[Ready]:
    """The others need an address of this machine that is not loopback, unless all of them are this machine."""
    if all(ready.place.host.is_here for ready in found):
        return list(found)
    from shoal.train.hosts import own_address

    outside = next(r.address for r in found if not r.place.host.is_here)
    return [found[0]._replace(address=own_address(outside)), *found[1:]]
