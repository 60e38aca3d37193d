from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from shoal.store.crew import Crew


def results(crew: Crew[int]) -> list[int]:
    out: list[int] = []
    while running := crew.started():
        for future in wait(running).done:
            out += future.result()
    return sorted(out)


def test_every_job_is_done_once() -> None:
    with ThreadPoolExecutor(4) as pool:
        crew = Crew(pool, [lambda n=n: n for n in range(100)])  # type: ignore[misc]
        crew.start(3)
        assert results(crew) == list(range(100))


def test_work_is_one_threads_while_it_is_busy() -> None:
    threads: set[int] = set()

    def busy() -> int:
        threads.add(threading.get_ident())
        return sum(range(100_000)) and 1

    with ThreadPoolExecutor(4) as pool:
        crew = Crew(pool, [busy] * 20)
        crew.start()
        assert sum(results(crew)) == 20
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
        crew = Crew(pool, [first, needs_another, needs_another])
        crew.start()
        assert sum(results(crew)) == 2
    assert met == 2


def test_an_error_passes() -> None:
    def broken() -> int:
        raise OSError("no")

    with ThreadPoolExecutor(2) as pool:
        crew = Crew(pool, [broken])
        crew.start()
        with pytest.raises(OSError, match="no"):
            results(crew)


def test_no_jobs_need_no_thread() -> None:
    with ThreadPoolExecutor(2) as pool:
        crew = Crew[int](pool, [])
        crew.start(2)
        assert crew.started() == set()
