"""Forked peers of the swarm tests do not share hivemind's locks, so that one that is killed cannot stop the others."""

import os
import signal

import pytest
from swarm_forks import Forked

from shoal.testing.extras import needs
from shoal.testing.patience import wait_until

pytestmark = needs("torch", "hivemind")


def hold_the_locks():
    from hivemind.utils.mpfuture import MPFuture, SharedBytes

    MPFuture._initialization_lock.acquire()
    SharedBytes._lock.acquire()
    print("held", flush=True)
    signal.pause()


def make_a_future():
    from hivemind.utils.mpfuture import MPFuture

    future = MPFuture()
    future.set_result("made")
    print(future.result(), flush=True)


@pytest.fixture
def fork(tmp_path):
    pytest.importorskip("hivemind")  # the forks inherit it, as those of the other tests do
    forks = []

    def fork(main):
        said = tmp_path / f"said{len(forks)}"
        forks.append(Forked(main, ["peer"], said, tmp_path / "log"))
        return forks[-1], said

    yield fork
    for process in forks:
        process.close()


def test_a_peer_killed_with_a_lock_of_hivemind_does_not_stop_the_next(fork):
    holder, said = fork(hold_the_locks)
    wait_until(lambda: said.read_text() == "held\n", "the first peer does not take the locks")
    os.kill(holder.pid, signal.SIGKILL)
    assert holder.wait() == -signal.SIGKILL
    _, said = fork(make_a_future)
    wait_until(
        lambda: said.read_text() == "made\n", "the second peer waits for a lock that nobody will release", limit_s=20
    )
