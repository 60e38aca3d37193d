import math
import os
import signal
import threading
import time

import pytest
from sdk_memory_store import Store

from shoal.agent.wire import SAVE_WANTED
from shoal.sdk.context import read_context
from shoal.sdk.stop import Decision, Stop
from shoal.testing.patience import patient


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def make(tmp_path):
    made = []

    def make(rank=0, world=1, **options):
        env = {"RANK": str(rank), "WORLD_SIZE": str(world)}
        stop = Stop(read_context("t", tmp_path, env), **{"store": Store, **options})
        made.append(stop)
        return stop

    yield make
    for stop in made:
        stop.close()


def wait_for(condition, timeout_s=10.0):
    until = time.monotonic() + patient(timeout_s)
    while not condition():
        assert time.monotonic() < until, "did not come true in time"
        time.sleep(0.005)


def test_with_one_worker_a_wish_is_met_at_the_next_step(make):
    stop = make()
    assert stop.next_step == math.inf
    stop.request("target reached")
    assert stop.next_step <= 1
    assert stop.decide(1) == Decision(save=True, stop=True)
    assert (stop.reason, stop.exit_code) == ("target reached", 0)


def test_saves_by_the_clock_come_when_due_and_count_from_the_last_save(make):
    clock = Clock()
    stop = make(clock=clock)
    stop.step, stop.every_s = 1, 600.0
    clock.now = 599.0
    stop.tick()
    assert stop.next_step == math.inf
    clock.now = 600.0
    stop.tick()
    assert stop.decide(5) == Decision(save=True)
    stop.saved()
    stop.tick()
    assert stop.next_step == math.inf
    clock.now = 1200.0
    stop.tick()
    assert stop.next_step <= 6


def test_nothing_is_saved_by_the_clock_before_there_is_something_to_save(make):
    clock = Clock()
    stop = make(clock=clock)
    clock.now = 1e6
    stop.step = 5
    stop.tick()
    assert stop.next_step == math.inf, "every_s is set by prepare"


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_in_training_is_a_wish_to_stop_and_handlers_are_given_back(make, signum, code):
    before = signal.getsignal(signum)
    stop = make()
    stop.install()
    stop.step = 1
    signal.raise_signal(signum)
    assert stop.decide(2) == Decision(save=True, stop=True)
    assert stop.exit_code == code
    stop.close()
    assert signal.getsignal(signum) is before
    assert signal.set_wakeup_fd(-1) == -1


def test_the_second_ctrl_c_stops_at_once(make):
    stop = make()
    stop.install()
    stop.step = 1
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_signal_before_the_first_step_does_what_it_always_did(make):
    seen = []
    previous = signal.signal(signal.SIGTERM, lambda *a: seen.append("theirs"))
    try:
        stop = make()
        stop.install()
        signal.raise_signal(signal.SIGTERM)
        assert seen == ["theirs"]
        assert stop.next_step == math.inf
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        stop.close()
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_the_handler_of_the_script_is_called_too_and_ignored_signals_stay_ignored(make):
    seen = []
    previous = signal.signal(signal.SIGTERM, lambda *a: seen.append(a[0]))
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        stop = make()
        stop.install()
        stop.step = 1
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        signal.raise_signal(signal.SIGTERM)
        assert seen == [signal.SIGTERM]
        assert stop.decide(2).stop
        stop.close()
    finally:
        signal.signal(signal.SIGTERM, previous)
        signal.signal(signal.SIGINT, interrupt)


def test_outside_the_main_thread_signals_are_left_alone(make):
    before = signal.getsignal(signal.SIGTERM)
    stop = make()
    thread = threading.Thread(target=stop.install)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before


def _child(body):
    """Fork, run, and give the pid; the child never comes back into pytest."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
        finally:
            os._exit(0)
    return pid


@pytest.mark.parametrize(("parent_is_asked", "survives"), [(True, True), (False, False)])
def test_a_data_worker_outlives_a_signal_to_the_group_but_not_one_meant_for_it(make, parent_is_asked, survives):
    stop = make()
    stop.install()
    stop.step = 1
    ready, say_ready = os.pipe()
    go, say_go = os.pipe()

    def body():
        os.write(say_ready, b"r")
        os.read(go, 1)

    pid = _child(body)
    assert os.read(ready, 1) == b"r"
    if parent_is_asked:
        signal.raise_signal(signal.SIGTERM)
    os.kill(pid, signal.SIGTERM)
    if survives:
        os.write(say_go, b"g")
    status = os.waitpid(pid, 0)[1]
    assert os.WIFEXITED(status) if survives else os.WTERMSIG(status) == signal.SIGTERM
    for fd in (ready, say_ready, go, say_go):
        os.close(fd)
    assert stop.decide(2).stop is parent_is_asked, "a child's signal is not its parent's"


def test_two_ranks_agree_through_their_threads_and_act_at_the_same_step(make):
    store = Store()
    stops = [make(rank, 2, store=lambda: store, prefix="p/") for rank in range(2)]
    for stop in stops:
        stop.watch()
        stop.step = 1
    stops[1].request("enough")
    outcomes = {}

    def train(rank):
        stop, step = stops[rank], 1
        while step < 100_000 and rank not in outcomes:
            if step <= min(s.step for s in stops):
                step += 1
                stop.step = step
                if step >= stop.next_step and (decision := stop.decide(step)).stop:
                    outcomes[rank] = (step, decision)
            time.sleep(0.001)

    threads = [threading.Thread(target=train, args=(r,), daemon=True) for r in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][1] == Decision(save=True, stop=True)
    assert [s.reason for s in stops] == ["enough", "enough"]


def test_without_a_store_a_rank_stops_by_itself_and_does_not_save_alone(make):
    def no_store():
        raise RuntimeError("no process group")

    stop = make(0, 2, store=no_store)
    stop.watch()
    stop.step = 1
    stop.request("enough")
    wait_for(lambda: stop.next_step == 0)
    assert stop.decide(2) == Decision(save=False, stop=True)


def test_a_store_that_dies_is_no_reason_to_hang(make):
    class Dying(Store):
        def check(self, keys):
            raise ConnectionError("gone")

    stop = make(1, 2, store=Dying)
    stop.watch()
    stop.step = 1
    stop.request("enough")
    wait_for(lambda: stop.next_step == 0)
    assert stop.decide(2).stop


def test_a_rank_stuck_among_the_dead_after_a_signal_is_ended(make, capfd):
    ended = threading.Event()
    codes = []

    class Dead(Store):
        def check(self, keys):
            raise ConnectionError("gone")

    clock = Clock()
    stop = make(1, 2, store=Dead, clock=clock, force_exit=lambda code: (codes.append(code), ended.set()))
    stop.install()
    stop.step = 1
    stop.watch()
    signal.raise_signal(signal.SIGTERM)
    wait_for(lambda: stop.next_step == 0)
    wait_for(lambda: stop._forced_at is not None)
    assert not ended.is_set()
    clock.now += 6.0
    assert ended.wait(10)
    assert codes[0] == 143
    assert "do not answer" in capfd.readouterr().err


def test_a_checkpoint_the_agent_asks_for_comes_once_for_each_time_it_asks(tmp_path):
    stop = Stop(read_context("t", None, {"SHOAL_SPOOL": str(tmp_path)}), store=Store)
    stop.tick()
    assert stop.next_step == math.inf
    (tmp_path / SAVE_WANTED).touch()
    stop.tick()
    assert stop.decide(1) == Decision(save=True, stop=False)
    stop.tick()
    assert stop.next_step == math.inf and not (tmp_path / SAVE_WANTED).exists()
