from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from types import SimpleNamespace

import pytest

from shoal.store.io import work_queue
from shoal.store.io.adaptive_pool import AdaptivePool


def results(jobs: AdaptivePool[int]) -> list[int]:
    out: list[int] = []
    while running := jobs.started():
        for future in wait(running).done:
            out += future.result()
    return sorted(out)


def test_every_job_is_done_once() -> None:
    with ThreadPoolExecutor(4) as pool:
        jobs = AdaptivePool(pool, [lambda n=n: n for n in range(100)])  # type: ignore[misc]
        jobs.start(3)
        assert results(jobs) == list(range(100))


def test_work_is_one_threads_while_it_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    # Time for which other programs have the processor looks like waiting: here the thread is never interrupted.
    clock = SimpleNamespace(perf_counter=time.thread_time, thread_time=time.thread_time)
    monkeypatch.setattr(work_queue, "time", clock)
    threads: set[int] = set()

    def busy() -> int:
        threads.add(threading.get_ident())
        return sum(range(100_000)) and 1

    with ThreadPoolExecutor(4) as pool:
        jobs = AdaptivePool(pool, [busy] * 20)
        jobs.start()
        assert sum(results(jobs)) == 20
    assert len(threads) == 1


def test_one_that_waits_gets_help() -> None:
    together = threading.Barrier(2)
    met = 0

    def first() -> int:
        threading.Event().wait(0.05)
        return 0

    def needs_another() -> int:
        nonlocal met
        together.wait(timeout=10)
        met += 1
        return 1

    with ThreadPoolExecutor(4) as pool:
        jobs = AdaptivePool(pool, [first, needs_another, needs_another])
        jobs.start()
        assert sum(results(jobs)) == 2
    assert met == 2


def test_an_error_passes() -> None:
    def broken() -> int:
        raise OSError("no")

    with ThreadPoolExecutor(2) as pool:
        jobs = AdaptivePool(pool, [broken])
        jobs.start()
        with pytest.raises(OSError, match="no"):
            results(jobs)


def test_no_jobs_need_no_thread() -> None:
    with ThreadPoolExecutor(2) as pool:
        jobs = AdaptivePool[int](pool, [])
        jobs.start(2)
        assert jobs.started() == set()
