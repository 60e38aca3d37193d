"""A signal ends the wait of the main thread, also if another thread receives it: otherwise an agent would notice late."""

import os
import select
import signal
import threading
from pathlib import Path

import pytest

from shoal.agent.workers.stop_signals import TERM_SIGNALS, StopSignals
from shoal.testing.engines import eventually
from shoal.testing.patience import patient


@pytest.fixture
def signals():
    found = StopSignals()
    yield found
    found.close()


def main_thread_sleeps():
    return Path(f"/proc/self/task/{os.getpid()}/stat").read_text().rpartition(")")[2].split()[0] == "S"


@pytest.mark.parametrize("signum", TERM_SIGNALS, ids=lambda number: number.name)
def test_a_signal_to_another_thread_wakes_the_main_thread(signals, signum):
    got = []
    signals.install(got.append)

    def signal_to_this_thread():
        eventually(main_thread_sleeps, 10)
        signal.pthread_kill(threading.get_ident(), signum)

    thread = threading.Thread(target=signal_to_this_thread)
    thread.start()
    woken = select.select([signals.wake_r], [], [], patient(20))[0]
    signals.clear()
    thread.join()
    assert woken and got == [signum]
    assert not select.select([signals.wake_r], [], [], 0)[0], "the pipe is empty after it was read"


def test_the_handlers_from_before_come_back():
    before = [signal.getsignal(signum) for signum in TERM_SIGNALS]
    found = StopSignals()
    found.install(lambda signum: None)
    assert [signal.getsignal(signum) for signum in TERM_SIGNALS] != before
    found.close()
    assert [signal.getsignal(signum) for signum in TERM_SIGNALS] == before


def test_a_request_without_a_signal_wakes_too_and_never_blocks(signals):
    for _ in range(100_000):
        signals.wake()
    assert select.select([signals.wake_r], [], [], 0)[0]
