"""Use of time and memory, measured with a clock of the test's own."""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch")

from shoal.train.table import parameter_table  # noqa: E402
from shoal.train.watch import Memory, Watch, read_memory  # noqa: E402

GB = 1e9


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class World:
    """A training whose steps take as long as it is told."""

    def __init__(self, every_s=5.0, model=None):
        self.clock, self.memory, self.seen = Clock(), Memory(2 * GB, 10 * GB), 0
        self.watch = Watch(model, every_s=every_s, clock=self.clock, memory=lambda: self.memory)

    def step(self, *, load=0.0, alone=(), exchange=0.1, rest=0.0, target=1_000_000):
        with self.watch.loading():
            self.clock.now += load
        for seconds in alone:
            with self.watch.backward(exchanges=False):
                self.clock.now += seconds
        with self.watch.backward(exchanges=True):
            self.clock.now += exchange
        self.clock.now += rest
        self.seen += 32
        return self.watch.after_step(self.seen, target)


def test_the_wait_for_data_and_the_speed_are_told_every_few_seconds():
    world = World()
    world.step()
    told = [figures for _ in range(100) if (figures := world.step(load=0.125, exchange=0.25, rest=0.125))]
    assert len(told) == 10
    assert told[-1]["speed/data_wait"] == pytest.approx(0.25)
    assert told[-1]["speed/samples_per_s"] == pytest.approx(64)
    assert world.watch.seconds_loading == pytest.approx(12.5)
    assert "speed/network_wait" not in told[-1]


def test_the_network_shows_in_the_backward_pass_that_exchanges():
    world = World()
    world.step()
    told = [figures for _ in range(50) if (figures := world.step(alone=(0.1, 0.1), exchange=0.3))]
    assert world.watch.network_s == pytest.approx(0.2)
    assert told[-1]["speed/network_wait"] == pytest.approx(0.4)


def test_what_ddp_measures_itself_counts_more():
    class Wrapped:
        def _get_ddp_logging_data(self):
            return {"avg_backward_comm_time": 80_000_000, "avg_backward_compute_comm_overlap_time": 30_000_000}

    world = World(model=Wrapped())
    world.step()
    told = [figures for _ in range(30) if (figures := world.step(exchange=0.5))]
    assert world.watch.network_s == pytest.approx(0.05)
    assert told[-1]["speed/network_wait"] == pytest.approx(0.1)


def test_memory_that_grows_is_followed_to_its_end():
    world = World()
    for i in range(200):
        world.memory = Memory(2 * GB + i * 20e6, 10 * GB - i * 20e6)
        world.step(rest=4.9)
    left = world.watch.runs_out_s
    assert left == pytest.approx((10 * GB - 199 * 20e6) / 4e6, rel=0.02)
    assert "runs out in about 25m" in world.watch.report()


def test_memory_that_only_goes_up_and_down_does_not_run_out():
    world = World()
    for i in range(200):
        world.memory = Memory(2 * GB + (i % 7) * 5e6, 10 * GB)
        world.step(rest=4.9)
    assert world.watch.runs_out_s is None and "runs out" not in world.watch.report()


def test_the_time_left_comes_with_a_range():
    world = World()
    for i in range(60):
        world.step(exchange=1.0 if i % 10 < 5 else 2.0, target=32 * 160)
    left, _, between = world.watch.report().rpartition(", ")[2].partition(" left (")
    low, high = between.rstrip(")").split(" to ")
    assert left.startswith("2m") and low < left < high


def test_a_step_costs_next_to_nothing():
    watch = Watch(memory=lambda: Memory(1.0, 1.0), every_s=1e9)
    watch.after_step(0, 10)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(2000):
            with watch.loading():
                pass
            with watch.backward(exchanges=True):
                pass
            watch.after_step(1, 10)
        best = min(best, (time.perf_counter() - start) / 2000)
    assert best < 10e-6


def test_the_memory_of_this_process_is_read():
    memory = read_memory()
    assert 1e7 < memory.used < 1e12 and memory.free > 0


def test_the_table_has_the_largest_parameters_first_with_their_shares():
    model = torch.nn.Sequential(torch.nn.Linear(30, 10), torch.nn.Linear(10, 5, bias=False))
    model[1].weight.requires_grad = False
    lines = parameter_table(model).splitlines()
    assert [line.split() for line in lines[1:4]] == [
        ["0.weight", "10×30", "300", "83.33%", "83.33%"],
        ["1.weight", "(frozen)", "5×10", "50", "13.89%", "97.22%"],
        ["0.bias", "10", "10", "2.78%", "100.00%"],
    ]
    assert lines[4] == "3 parameters, 360 numbers (360), 50 of them frozen"


def test_a_parameter_in_two_places_counts_once_and_long_tables_are_cut():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    assert "1 parameters, 16 numbers" in parameter_table(model)
    deep = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(10)))
    assert "… 17 more" in parameter_table(deep, most=3)
