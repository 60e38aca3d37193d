"""Content of a quote: measured where possible, scaled by speed where steps are known, otherwise a bound or nothing."""

import pytest

from shoal.server.billing.quote_rules import Past, estimate, is_similar, shape, sizes, steps_of

ENTRY = ("train.py", "--steps", "1000", "--lr", "0.1")


def past(name="a", *, steps=1000, lr="0.1", nodes=1, accels=1, **changes):
    known = {"setup_s": 5.0, "ran_s": 100.0, "done": steps, "total": steps, "paces": (9.0, 10.0, 11.0)}
    entry = ("train.py", "--steps", str(steps), "--lr", lr)
    return Past(name=name, entry=entry, nodes=nodes, accels=accels, **known | changes)


def test_jobs_are_alike_if_they_run_one_script_with_the_same_options():
    assert shape(["./train.py", "--lr=3", "--flag"]) == shape(["train.py", "--flag", "--lr", "-4e-3"])
    assert shape(["train.py", "data"]) != shape(["train.py"])
    assert shape(["train.py", "--lr", "1"]) != shape(["train.py", "--rate", "1"])
    assert shape(["eval.py"]) != shape(["train.py"])


def test_a_few_more_or_other_options_are_still_similar_another_script_or_file_is_not():
    assert is_similar(ENTRY, ["train.py", "--steps", "1000", "--lr", "0.1", "--seed", "3"])
    assert is_similar(ENTRY, ["train.py", "--steps", "1000", "--rate", "0.1"])
    assert not is_similar(ENTRY, ["train.py", "--steps", "1000", "--a", "1", "--b", "2"])
    assert not is_similar(ENTRY, ["eval.py", "--steps", "1000", "--lr", "0.1"])
    assert not is_similar(ENTRY, ["train.py", "data", "--steps", "1000", "--lr", "0.1"])


def test_a_job_that_ran_as_it_is_asked_for_is_the_measure():
    found = estimate(ENTRY, (1, 1), [past(), past("b", ran_s=130.0), past("partial", complete=False, done=3)], 1000)
    assert (found.low_s, found.high_s, found.basis, found.jobs) == (105.0, 135.0, "measured", ("a", "b"))


def test_for_other_steps_the_pace_is_scaled_and_what_was_not_stepping_is_kept():
    steps, how = steps_of(("train.py", "--steps", "5000", "--lr", "0.1"), [past(ran_s=103.0)])
    assert steps == 5000 and how == "--steps is assumed to be the number of steps, as in a"
    found = estimate(("train.py", "--steps", "5000", "--lr", "0.1"), (1, 1), [past(ran_s=103.0)], steps)
    assert found.basis == "scaled"
    assert (found.low_s, found.high_s) == (pytest.approx(5 + 3 + 5000 / 11), pytest.approx(5 + 3 + 5000 / 9))


def test_a_probe_that_was_stopped_tells_its_pace():
    probe = past(complete=False, done=400, total=1000, ran_s=60.0)
    found = estimate(ENTRY, (1, 1), [probe], steps_of(ENTRY, [probe])[0])
    assert found.basis == "scaled" and found.low_s == pytest.approx(5 + 20 + 1000 / 11)


def test_other_sizes_are_measured_or_bounds():
    jobs = [past(), past("wide", accels=2, ran_s=65.0)]
    assert estimate(ENTRY, (1, 2), jobs, 1000).basis == "measured"
    four = estimate(ENTRY, (1, 4), jobs, 1000)
    assert (four.low_s, four.high_s, four.basis) == (35.0, None, "bound")
    one = estimate(ENTRY, (1, 1), [jobs[1]], 1000)
    assert (one.low_s, one.high_s, one.basis) == (70.0, 140.0, "bound")


def test_nothing_is_made_up():
    unknown = past(total=None, done=None, paces=())
    other = ("train.py", "--steps", "1000", "--lr", "0.2")
    assert estimate(other, (1, 1), [unknown], None) is None
    assert estimate(ENTRY, (1, 1), [unknown], None).basis == "measured"
    assert estimate(ENTRY, (1, 1), [], 1000) is None
    assert steps_of(("train.py", "--lr", "1"), [past(steps=10), past(steps=20)]) == (None, None)
    assert steps_of(("train.py",), [past(total=70), past(total=70, lr="3")])[0] == 70


def test_only_sizes_the_machines_could_run_are_shown():
    assert sizes((1, 1), [], [4, 4]) == [(1, 1), (1, 2), (1, 4)]
    assert sizes((1, 4), [], [4, 4]) == [(1, 4), (2, 4)]
    assert sizes((1, 1), [past(accels=3), past(accels=64)], [4]) == [(1, 1), (1, 2), (1, 4), (1, 3)]
