"""`shoal.sweep` of a function: real processes, no server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

import shoal
from shoal.core.errors import JobFailed, UsageError
from shoal.core.sweeps import TrialState
from shoal.train import Params, Range


def states(found):
    return [trial.state for trial in found.trials]


def test_every_combination_is_tried_and_the_best_is_told():
    found = shoal.sweep(lambda p: (p["x"] - 3) ** 2 + p["y"], {"x": [1, 3, 5], "y": [0, 1]}, parallel=2, quiet=True)
    assert [(t.params["x"], t.params["y"]) for t in found.trials] == [(x, y) for x in (1, 3, 5) for y in (0, 1)]
    assert (found.wait().best.params, found.best.result) == ({"x": 3, "y": 0}, 0.0)
    assert set(states(found)) == {TrialState.DONE}
    largest = shoal.sweep(lambda p: p["x"], {"x": [1, 3, 2]}, direction="max", quiet=True)
    assert largest.best.params == {"x": 3}


def test_values_may_be_any_objects_and_go_hand_in_hand():
    class Model(Params):
        kind: object = Range([int, float], group="g")
        size: int = Range([1, 2], group="g")
        lr: float = 0.5

    found = shoal.sweep(lambda p: p.lr if p.kind is float and p.size == 2 else 9.0, Model(lr=0.25), quiet=True)
    assert [t.params for t in found.trials] == [{"kind": int, "size": 1}, {"kind": float, "size": 2}]
    assert found.best.result == 0.25, "the function is called with Params"


def train(params):
    try:
        for step in range(9):
            yield params["x"] + 1 / (step + 1)
    finally:
        Path(params["folder"], f"{params['x']}").write_text("closed")


def test_what_falls_behind_ends_at_its_yield(tmp_path):
    space = {"x": list(range(9)), "folder": [str(tmp_path)]}
    found = shoal.sweep(train, space, search="asha", trials=9, parallel=1, quiet=True)
    pruned = [t for t in found.trials if t.state is TrialState.PRUNED]
    assert pruned and all(t.reports < 9 for t in pruned)
    assert found.best.params["x"] == 0 and found.best.reports == 9
    assert pruned[0].reason.startswith("pruned: ") and "the best third had ≤" in pruned[0].reason
    assert len(list(tmp_path.iterdir())) == 9, "what has to be closed is"


def test_a_function_may_report_by_its_second_argument_and_as_a_mapping():
    def reports(params, report):
        for value in [params["x"]] * 4:
            try:
                report({"acc": value, "other": 0})
            except Exception:
                raise AssertionError("a pruned trial cannot be caught as an error") from None

    found = shoal.sweep(
        reports, {"x": [1, 2, 3, 4]}, metric="acc", direction="max", search="asha", trials=4, quiet=True
    )
    assert found.best.params["x"] == 4
    assert {t.reports for t in found.trials} == {3, 4}


def test_a_skipped_trial_is_no_failure_and_the_environment_is_as_in_a_job():
    def skips(params):
        assert shoal.trial_params() == params and os.environ["SHOAL_TRIAL"] == str(params["x"])
        if params["x"] == 0:
            shoal.skip_trial("too   large")
        return 1.0

    found = shoal.sweep(skips, {"x": [0, 1]}, quiet=True)
    assert [(t.state, t.reason) for t in found.trials] == [("skipped", "too   large"), ("done", None)]


def test_failures_are_told_and_the_rest_goes_on(capfd):
    def fails(params):
        if params["x"] == 1:
            raise ValueError("no such thing")
        if params["x"] == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return None if params["x"] == 3 else 0.0

    found = shoal.sweep(fails, {"x": [0, 1, 2, 3]})
    assert states(found) == ["done", "failed", "failed", "failed"]
    assert found.trials[1].reason == "ValueError: no such thing"
    assert "killed by signal 9" in found.trials[2].reason and "reported no value" in found.trials[3].reason
    said = capfd.readouterr().err
    assert "Traceback" in said and "2 of 4: trial 1  failed  -  x=1  (ValueError: no such thing)" in said


def test_when_the_first_three_fail_it_gives_up():
    def fails(params):
        raise SystemExit(f"no {params['x']}")

    with pytest.raises(JobFailed, match=r"All of the first 3 trials failed: it ended with code no 0"):
        shoal.sweep(fails, {"x": list(range(50))}, quiet=True)


@pytest.mark.parametrize(
    ("space", "options", "message"),
    [
        ({}, {}, "there are no values to try"),
        ({"x": []}, {}, "x has no values"),
        ({"x": "3:1"}, {}, "x: 3:1 is not a range"),
        ({"x": "1:3"}, {}, "say how many trials"),
        ({"x": [1]}, {"parallel": 0}, "parallel: Input should be"),
        ({"x": [1]}, {"accels": 2, "url": "http://x"}, "takes no accels, url"),
        (Params, {}, "Params has no Range"),
    ],
)
def test_what_is_wrong_is_told_before_anything_runs(space, options, message):
    with pytest.raises(UsageError, match=message):
        shoal.sweep(lambda params: 0.0, space, **options)


def test_ctrl_c_leaves_no_process_behind(tmp_path):
    script = tmp_path / "local.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, signal, sys, time, shoal
            def waits(params):
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                os.write(1, b"%d\\n" % os.getpid())  # in one piece: the other one writes too
                time.sleep(600)
            shoal.sweep(waits, {"x": [1, 2, 3]}, parallel=2)
            """
        )
    )
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        try:
            children = [int(run.stdout.readline()) for _ in range(2)]
            run.send_signal(signal.SIGINT)
            _, said = run.communicate(timeout=60)
        finally:
            run.kill()  # if it hangs; its children end with it
    assert run.returncode != 0 and said.strip().endswith("KeyboardInterrupt")
    assert [pid for pid in children if runs(pid)] == []


def test_ctrl_c_is_not_lost_where_python_drops_exceptions(tmp_path):
    script = tmp_path / "local.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, signal, sys, shoal
            class Dropped:
                def __del__(self):
                    os.kill(os.getpid(), signal.SIGINT)
            class Output:
                def write(self, text):
                    sys.stderr = sys.__stderr__
                    Dropped()
                def flush(self):
                    pass
            sys.stderr = Output()
            shoal.sweep(lambda params: params["x"] and signal.pause(), {"x": [0, 1]}, parallel=1)
            """
        )
    )
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert run.returncode != 0 and run.stderr.strip().endswith("KeyboardInterrupt")


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
