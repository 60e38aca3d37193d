import io

import pytest

from shoal.agent.workers.progress import ProgressReader
from shoal.sdk.progress import Line, Pace, Standing, duration, live_line, main_metric, plain_line


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


FULL = Standing(
    step=120, total=1000, metric=("loss", 0.4321), steps_per_s=12.3, left_s=(72.0, 65.0, 80.0), saved_s=40.0
)


def test_the_plain_line_says_everything_and_an_agent_can_read_it():
    line = plain_line(FULL)
    assert line == "step 120/1000  loss 0.4321  12.3 steps/s  1m12s left (1m05s–1m20s)  saved 40s ago"
    reader = ProgressReader()
    assert reader.feed(line.encode(), 0.0)
    report = reader.report()
    assert report is not None and (report["step"], report["total"]) == (120, 1000)


def test_what_is_not_known_is_left_out():
    assert plain_line(Standing(step=5)) == "step 5"
    assert plain_line(Standing(step=5, desc="fine-tune", steps_per_s=0.05)) == "fine-tune  step 5  20.0 s/step"
    assert plain_line(Standing(step=5, total=10, left_s=(3.0, 3.0, 3.0))) == "step 5/10  3s left"


def test_the_live_line_has_a_bar():
    assert live_line(FULL).startswith(" 12% ━━──────────────────────  120/1000".replace("  120", " 120"))
    assert live_line(Standing(step=10, total=10)).startswith("100% ━━━━━━━━━━━━━━━━━━━━━━━━ 10/10")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59.6, "1m00s"), (65, "1m05s"), (7380, "2h03m"), (371000, "4d07h")]
)
def test_durations_read_well(seconds, text):
    assert duration(seconds) == text


def test_the_loss_is_shown_before_anything_else():
    assert main_metric({"lr": 1e-4, "train/loss": 2.0}) == ("train/loss", 2.0)
    assert main_metric({"val_loss": 1.0, "loss": 2.0}) == ("loss", 2.0)
    assert main_metric({"acc": 0.5}) == ("acc", 0.5)
    assert main_metric({}) is None


def test_time_left_of_a_steady_training_is_exact_and_without_a_range():
    pace = Pace()
    for second in range(20):
        pace.add(float(second), second * 10)
    assert pace.left_s(19.0, 190, 1190) == pytest.approx((100.0, 100.0, 100.0))
    assert pace.steps_per_s(19.0, 190) == pytest.approx(10.0)


def test_time_left_of_an_uneven_training_has_a_range_around_it():
    pace, now, step = Pace(), 0.0, 0
    for block in range(30):
        now, step = now + (1.0 if block % 2 else 3.0), step + 10
        pace.add(now, step)
    middle, low, high = pace.left_s(now, step, step + 100)
    assert low == pytest.approx(10.0) and high == pytest.approx(30.0)
    assert low < middle < high


def test_a_faster_phase_is_believed_after_a_minute():
    pace, now, step = Pace(), 0.0, 0
    for _ in range(100):
        now, step = now + 2.0, step + 1
        pace.add(now, step)
    for _ in range(61):
        now, step = now + 1.0, step + 10
        pace.add(now, step)
    assert pace.left_s(now, step, step + 100) == pytest.approx((10.0, 10.0, 10.0))


def test_elsewhere_than_on_a_terminal_a_line_comes_every_ten_seconds_and_at_the_end():
    clock, stream = Clock(), io.StringIO()
    line = Line(stream, clock=clock)
    drawn = 0
    for step in range(1, 101):
        clock.now += 0.25
        if line.due:
            line.draw(Standing(step=step, total=100))
            drawn += 1
    assert drawn == 2
    line.close(Standing(step=100, total=100))
    assert stream.getvalue() == "step 40/100\nstep 80/100\nstep 100/100\n"


def test_on_a_terminal_one_line_is_drawn_over_and_ended_at_last():
    clock, stream = Clock(), Terminal()
    line = Line(stream, clock=clock)
    assert line.due
    line.draw(Standing(step=1, total=2))
    assert not line.due
    line.close(Standing(step=2, total=2))
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().count("\r") == 2


def test_a_closed_terminal_is_no_reason_to_fail():
    stream = io.StringIO()
    line = Line(stream, clock=Clock())
    stream.close()
    line.draw(Standing(step=1))
    assert not line.due
