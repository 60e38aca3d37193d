"""The server's clock counts elapsed time, whatever is done to the system clock (F18)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.schema import timed_by, utcnow
from shoal.core.steady_clock import Reading, SteadyClock

DAY = 86_400.0


class Machine:
    """A machine whose two clocks the test moves."""

    def __init__(self, wall_s=1_000_000.0, boot_s=500.0, boot="boot-1"):
        self.wall_s, self.boot_s, self.boot = wall_s, boot_s, boot

    def clock(self):
        return SteadyClock(wall_s=lambda: self.wall_s, boot_s=lambda: self.boot_s, boot=self.boot)

    def passes(self, seconds, jump_s=0.0):
        self.boot_s += seconds
        self.wall_s += seconds + jump_s

    def reboots(self, off_s, wall_s=None):
        self.boot, self.boot_s = f"{self.boot}+", 5.0
        self.wall_s = self.wall_s + off_s if wall_s is None else wall_s


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0, DAY, -DAY, 2.0])
def test_a_jump_is_noticed_once_and_does_not_move_the_clock(jump_s):
    machine = Machine()
    clock = machine.clock()
    machine.passes(10)
    assert clock.step() is None
    machine.passes(1, jump_s)
    assert clock.step() == pytest.approx(jump_s)
    assert clock.now_s() == pytest.approx(1_000_011)
    machine.passes(100)
    assert clock.step() is None
    assert clock.now_s() == pytest.approx(1_000_111, abs=0.1)
    assert clock.gap_s == pytest.approx(jump_s, abs=0.1)


def test_drift_is_followed_slowly_and_never_backwards():
    machine = Machine()
    clock, last = machine.clock(), 0.0
    for _ in range(20_000):
        machine.passes(1.0, -0.0002)
        assert clock.step() is None
        assert clock.now_s() > last
        last = clock.now_s()
    assert abs(clock.gap_s) < 0.01, "NTP slows the clock by 0.2 ms a second"


def test_a_restart_continues_and_counts_the_time_between():
    machine = Machine()
    known = machine.clock().reading()
    machine.passes(3600, jump_s=-DAY)
    clock = machine.clock()
    clock.resume(known)
    assert clock.now_s() == pytest.approx(1_003_600)
    assert clock.step() == pytest.approx(-DAY), "a jump while the server was down is noticed too"


def test_after_a_reboot_it_is_the_time_of_day_but_never_earlier_than_before():
    machine = Machine()
    known = machine.clock().reading()
    machine.reboots(off_s=7200)
    clock = machine.clock()
    clock.resume(known)
    assert clock.now_s() == pytest.approx(1_007_200), "time passes while a machine is off"
    machine.reboots(off_s=0, wall_s=0.0)  # its battery is empty: 1970
    clock = machine.clock()
    clock.resume(Reading("boot-1", 500.0, 1_007_200.0))
    assert clock.now_s() >= 1_007_200


@given(
    st.lists(
        st.tuples(st.floats(0.01, 5_000), st.sampled_from([0.0, 0.0, 3600.0, -3600.0, -DAY, DAY * 400])), max_size=40
    )
)
def test_whatever_is_done_to_the_system_clock_elapsed_time_is_right_and_grows(steps):
    machine = Machine()
    clock, elapsed = machine.clock(), 0.0
    last = clock.now_s()
    for seconds, jump_s in steps:
        machine.passes(seconds, jump_s)
        elapsed += seconds
        clock.step()
        assert clock.now_s() >= last
        last = clock.now_s()
    assert last - 1_000_000 == pytest.approx(elapsed, rel=0.001, abs=0.001)


def test_utcnow_follows_the_given_clock_only_inside_the_block():
    with timed_by(lambda: 1_000_000.25):
        assert utcnow().isoformat() == "1970-01-12T13:46:40.250000+00:00"
    assert utcnow().year > 2020
