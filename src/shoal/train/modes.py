"""Ways to run an unchanged training script: many trainings over a pool of machines (auto), or one over several (distributed).

No server is needed. Other machines are reached by ssh.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from shoal.core.durations import duration
from shoal.core.errors import CanNeverRun, UsageError
from shoal.train.launch_groups import LaunchGroup, Result, Task, wait_for_end
from shoal.train.preflight import Needs, Place, Ready, check

_POLL_S = 0.5
"""Seconds between two checks for a stop request and for new scores."""


@dataclass(slots=True, kw_only=True)
class Desk:
    """Connection to the user: output of messages, and requests to stop."""

    tell: Callable[[str], None] = print
    """Function that shows a message."""
    should_stop: Callable[[], bool] = lambda: False
    """Function that returns True once everything should stop."""


def run_pool(tasks: Sequence[Task], places: Sequence[Place], needs: Needs, desk: Desk) -> list[Result]:
    """Run every task on one machine, as many at once as there are free slots (auto mode); return results in task order."""
    if not tasks:
        raise UsageError("there is nothing to run")
    pool = _Pool(tasks, check(places, needs), needs, desk)
    return pool.run()


def run_distributed(task: Task, places: Sequence[Place], needs: Needs, desk: Desk) -> Result:
    """Run one task over all machines (distributed mode). Rank 0 is on the first of `places`."""
    found = check(places, needs)
    head, *_ = found
    if len(found) > 1 and head.place.host.is_here and head.address.startswith("127."):
        found = _reachable_here(found)
    desk.tell(f"'{task.name}' starts on {', '.join(str(r.place.host) for r in found)}.")
    group = LaunchGroup(
        task, found, lambda r: environment(r, task=task, needs=needs, slots=r.place.slots[: task.workers])
    )
    best, is_stopping = _Best(desk), False
    with _stop_on_error(lambda: [group], desk):
        while not group.is_over:
            wait_for_end([group], _POLL_S)
            group.end_if_one_failed()
            best.report(task)
            if not is_stopping and desk.should_stop():
                is_stopping = True
                group.stop()
    return group.close()


def environment(ready: Ready, *, task: Task, needs: Needs, slots: Sequence[int]) -> dict[str, str]:
    """Return the environment of the workers on one machine, with its GPUs and its network interface."""
    env = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, slots))} if needs.gpus else {}
    if ready.interface:
        env |= {"GLOO_SOCKET_IFNAME": ready.interface, "NCCL_SOCKET_IFNAME": ready.interface}
    return {**env, **task.env_at(ready, slots)}


def remaining_s(each_s: float, *, waiting: Sequence[int], running: Sequence[tuple[int, float]], slots: int) -> float:
    """Return the estimated seconds until all tasks are done, if each takes `each_s`.

    Args:
        each_s: Mean duration of finished tasks.
        waiting: Slots that each waiting task needs.
        running: Slots and seconds so far of each running task.
        slots: All slots.
    """
    left = [(number, max(0.0, each_s - ran_s)) for number, ran_s in running]
    work = sum(number * seconds for number, seconds in left) + each_s * sum(waiting)
    return max(work / slots, max((seconds for _, seconds in left), default=0.0), each_s if waiting else 0.0)


@dataclass(slots=True)
class _Running:
    group: LaunchGroup
    number: int
    ready: Ready
    slots: list[int]


class _Pool:
    """Assignment of tasks to machines and slots. The launch groups run them."""

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
        with _stop_on_error(lambda: [r.group for r in self._running], self._desk):
            while self._waiting or self._running:
                self._start_what_fits()
                wait_for_end([r.group for r in self._running], _POLL_S)
                for running in self._running:
                    running.group.end_if_one_failed()
                    self._best.report(running.group.task)
                for running in [r for r in self._running if r.group.is_over]:
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
            group = LaunchGroup(task, [ready], partial(environment, task=task, needs=self._needs, slots=slots))
            self._running.append(_Running(group, number, ready, slots))
            self._desk.tell(
                f"Task[{number}] '{task.name}' starts on {ready.place.host}, slots {slots}; "
                f"{len(self._waiting)} tasks are waiting."
            )

    def _finish(self, running: _Running) -> None:
        self._running.remove(running)
        next(slots for ready, slots in self._free if ready is running.ready).extend(running.slots)
        result = self._results[running.number] = running.group.close()
        left = self._total - len(self._results)
        words = {"finished": "succeeds", "failed": "fails", "stopped": "is stopped", "skipped": "is skipped"}
        score = "" if result.score is None else f", best vali_error: {result.score:.6g}"
        reason = "" if result.reason is None else f": {result.reason} (see {running.group.task.logs})"
        self._desk.tell(
            f"Task[{running.number}] '{running.group.task.name}' {words[result.status]}{reason}{score}, "
            f"taking {duration(result.seconds)}, remaining {left} tasks, "
            f"remaining time: {duration(0 if self._stopping else self._left_s())}"
        )

    def _left_s(self) -> float:
        ran = [result.seconds for result in self._results.values() if result.status != "skipped" and result.seconds]
        return remaining_s(
            statistics.fmean(ran) if ran else 0.0,
            waiting=[task.workers for _, task in self._waiting],
            running=[(len(r.slots), r.group.seconds) for r in self._running],
            slots=self._slots,
        )

    def _stop(self) -> None:
        self._stopping = True
        for running in self._running:
            running.group.stop()
        self._desk.tell(f"Stopping: {len(self._running)} running tasks save, {len(self._waiting)} are not started.")
        for number, task in self._waiting:
            self._results[number] = Result(task=task, status="stopped", seconds=0.0)
        self._waiting.clear()


@dataclass(slots=True)
class _Best:
    """Reporter of new best scores of tasks."""

    desk: Desk
    reported: dict[str, float] = field(default_factory=dict)

    def report(self, task: Task) -> None:
        score = task.score()
        if score is not None and score != self.reported.get(task.name):
            self.reported[task.name] = score
            self.desk.tell(f"'{task.name}' is running, best vali_error: {score:.6g}")


@contextmanager
def _stop_on_error(running: Callable[[], Sequence[LaunchGroup]], desk: Desk) -> Iterator[None]:
    """Stop the running tasks, which may save first, on Ctrl-C or any other error."""
    try:
        yield
    except BaseException:
        groups = running()
        for group in groups:
            group.stop()
        if groups:
            desk.tell(f"Stopping {len(groups)} running tasks; they may save first.")
        for group in groups:
            group.close()
        raise


def _reachable_here(found: Sequence[Ready]) -> list[Ready]:
    """Replace this machine's loopback address by one that the other machines can reach, if there are others."""
    if all(ready.place.host.is_here for ready in found):
        return list(found)
    from shoal.train.hosts import own_address

    outside = next(r.address for r in found if not r.place.host.is_here)
    return [found[0]._replace(address=own_address(outside)), *found[1:]]
