"""The SDK's part of a fire drill: which fault happens to which worker in which attempt, and how a copy ends."""

import json
import math
import signal
from types import SimpleNamespace

import pytest

from shoal.core.drills import MARK, VARIABLE, Fault, Plan
from shoal.core.errors import UsageError
from shoal.sdk.drill import Drill

PLAN = Plan.of(
    8,
    [
        Fault(what="kill", at=3, rank=1),
        Fault(what="sigterm", at=5, node=1),
        Fault(what="server-down", at=4, seconds=20),
        Fault(what="slow", at=2, until=3, rank=0, factor=3.0),
    ],
)


class Spool:
    def __init__(self):
        self.records = []

    def put(self, record):
        self.records.append((record.kind, record.encode()))


class Run:
    def __init__(self, is_main=True):
        self.is_main, self.finished = is_main, False

    def finish(self):
        self.finished = True


@pytest.fixture
def world(monkeypatch):
    """Signals that are noted in place of being sent, and a clock that sleeping moves."""
    made = SimpleNamespace(signals=[], slept=[], now=100.0)

    def sleep(seconds):
        made.slept.append(seconds)
        made.now += seconds

    monkeypatch.setattr("shoal.sdk.drill.os.kill", lambda pid, signum: made.signals.append(signum))
    monkeypatch.setattr(
        "shoal.sdk.drill.time", SimpleNamespace(sleep=sleep, monotonic=lambda: made.now, time=lambda: 1.0)
    )
    return made


def worker(rank=0, local=0, node=0, attempt=1, stop=math.inf):
    env = {VARIABLE: PLAN.dump(), "RANK": rank, "LOCAL_RANK": local, "GROUP_RANK": node, "SHOAL_ATTEMPT": attempt}
    spool = Spool()
    drill = Drill.from_env(spool, SimpleNamespace(next_step=stop), {k: str(v) for k, v in env.items()})
    return drill, spool


def events(capsys):
    return [json.loads(line.partition(MARK)[2]) for line in capsys.readouterr().err.splitlines()]


def test_an_ordinary_run_is_left_alone():
    assert Drill.from_env(Spool(), SimpleNamespace(next_step=0), {}) is None


@pytest.mark.parametrize("text", ["{", "3", "{}", '{"stop_at": 3, "faults": [{"what": "kill"}]}'])
def test_what_is_not_understood_is_said(text):
    with pytest.raises(UsageError, match=VARIABLE):
        Drill.from_env(Spool(), SimpleNamespace(next_step=0), {VARIABLE: text})


def test_a_worker_dies_at_its_step_in_the_first_attempt_and_passes_it_in_the_second(world, capsys):
    first, _ = worker(rank=1, local=1)
    for step in (1, 2, 3):
        first.after_step(Run(is_main=False), None, step)
    assert world.signals == [signal.SIGKILL]
    assert [(e["event"], e["step"], e["fault"]) for e in events(capsys)] == [("fault", 3, 1)]
    second, _ = worker(rank=1, local=1, attempt=2)
    first.after_step(Run(is_main=False), None, 4)
    second.after_step(Run(is_main=False), None, 3)
    assert world.signals == [signal.SIGKILL]


def test_a_fault_whose_step_was_saved_by_the_attempt_before_happens_at_the_next(world, capsys):
    drill, spool = worker(rank=2, node=1, attempt=2, stop=7)
    drill.after_step(Run(), None, 6)
    drill.after_step(Run(), None, 7)
    assert [fields["do"] for _, fields in spool.records] == ["cut", "sigterm"]
    assert [(e["event"], e["step"]) for e in events(capsys)][1:] == [("fault", 6), ("fault", 6)]


def test_nodes_ask_their_agents_each_for_its_own(world):
    for node, attempt, orders in ((0, 2, ["cut"]), (1, 2, ["cut", "sigterm"]), (1, 1, [])):
        drill, spool = worker(rank=2 * node, node=node, attempt=attempt, stop=6)
        for step in (4, 5):
            drill.after_step(Run(), None, step)
        assert [fields["do"] for kind, fields in spool.records if kind == "x"] == orders, (node, attempt)
    drill, spool = worker(rank=3, local=1, node=1, attempt=2)
    drill.after_step(Run(), None, 5)
    assert spool.records == []  # one worker of a node speaks for it


def test_a_worker_waits_for_the_signal_it_has_asked_for(world):
    drill, _ = worker(node=1, attempt=2)
    drill.after_step(Run(), None, 5)
    assert sum(world.slept) >= 15  # nobody obeyed; it goes on
    world.slept.clear()
    drill, _ = worker(node=1, attempt=2, stop=6)
    drill.after_step(Run(), None, 5)
    assert world.slept == []


def test_a_slow_worker_takes_so_many_times_as_long_in_those_steps_only(world):
    drill, _ = worker()
    for step in range(1, 6):
        world.now += 2.0
        drill.after_step(Run(), None, step)
    assert world.slept == [0, pytest.approx(4.0), pytest.approx(4.0), 0, 0][1:]


def test_the_copy_ends_at_its_last_step_when_the_iteration_is_over(world, capsys):
    drill, _ = worker()
    run, actions = Run(), []
    drill.after_step(run, SimpleNamespace(at_iteration_end=actions.append), 8)
    assert not run.finished and len(actions) == 1
    with pytest.raises(SystemExit) as ended:
        actions[0]()
    assert ended.value.code == 0 and run.finished
    assert [(e["event"], e["step"]) for e in events(capsys)] == [("going", 7), ("ended", 8)]
    alone, _ = worker()
    with pytest.raises(SystemExit):
        alone.after_step(Run(), None, 9)
