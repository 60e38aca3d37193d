from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from shoal.store.io.work_queue import Waited, WorkQueue


def test_every_turn_and_what_it_puts_back_is_taken_once() -> None:
    taken: list[int] = []

    def turn(n: int) -> None:
        taken.append(n)
        if n < 100:
            queue.put(partial(turn, n + 10), done=n / 100)

    queue = WorkQueue([partial(turn, n) for n in range(10)])
    queue.run("test", 3, reserve=0)
    assert sorted(taken) == list(range(110))


def test_what_is_least_far_on_comes_next() -> None:
    taken: list[str] = []

    def first() -> None:
        queue.put(lambda: taken.append("most"), done=0.9)
        queue.put(lambda: taken.append("least"), done=0.1)
        queue.put(lambda: taken.append("half"), done=0.5)

    queue = WorkQueue([first])
    queue.run("test", 1, reserve=0)
    assert taken == ["least", "half", "most"]


def test_a_turn_goes_on_beside_the_one_that_put_it_back() -> None:
    together = threading.Barrier(2)

    def first() -> None:
        queue.put(partial(together.wait, 10))
        together.wait(10)

    queue = WorkQueue([first])
    queue.run("test", 2, reserve=0)
    assert not together.broken


def test_one_that_waits_gets_help_while_there_is_any() -> None:
    together = threading.Barrier(2)

    def first() -> None:
        queue.put(partial(together.wait, 10))
        queue.help()
        queue.help()
        together.wait(10)

    queue = WorkQueue([first])
    queue.run("test", 1, reserve=1)
    assert not together.broken


def test_the_first_error_ends_all_and_lets_go_of_those_who_wait() -> None:
    let_go, taken = threading.Event(), []

    def waits() -> None:
        queue.put(broken)
        assert let_go.wait(10)
        queue.put(partial(taken.append, 1))

    def broken() -> None:
        raise OSError("no")

    queue = WorkQueue([waits], failed=let_go.set)
    with pytest.raises(OSError, match="no"):
        queue.run("test", 2, reserve=0)
    assert not taken


def test_ctrl_c_ends_all() -> None:
    begun, let_go, taken = threading.Event(), threading.Event(), []

    def waits() -> None:
        begun.set()
        let_go.wait(10)
        queue.put(partial(taken.append, 1))

    queue = WorkQueue([waits], failed=let_go.set)

    def interrupted() -> None:
        assert begun.wait(10)
        raise KeyboardInterrupt

    queue._over.wait = interrupted  # type: ignore[method-assign, assignment]
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        queue.run("test", 2, reserve=0)
    assert not taken
    assert threading.active_count() == before


def test_waiting_is_told_from_work() -> None:
    waited = Waited()
    threading.Event().wait(0.02)
    assert waited
    worked, until = Waited(), time.thread_time() + 0.02
    while time.thread_time() < until:
        pass
    assert not worked
