"""What a machine's facts mean."""

import sys

import pytest

from shoal.core.errors import InvalidSpec
from shoal.core.pool import PairSpeed
from shoal.server.services.pool_problems import GIB, diagnose, missing_parts, share
from shoal.server.services.pool_speed import choose_pairs, what_stands_out

GOOD = {
    "hostname": "gpu1",
    "home": "/Users/ada/.shoal",
    "address": "10.0.0.5",
    "python": list(sys.version_info[:3]),
    "executable": "/usr/bin/python3",
    "has_venv": True,
    "installed": {},
    "disk_free": 100 * GIB,
    "writable": True,
    "cores": 8,
    "memory": 16 * GIB,
    "unreachable": [],
    "lookup_s": 0.01,
    "nvidia_cards": 0,
    "gpus": [],
    "gpu_error": None,
    "rocm": 0,
    "open": True,
}
CARDS = [["0", "A100", "550"], ["1", "A100", "550"]]


def found(*, needs_runtime=True, skew_s=0.0, **facts):
    return diagnose(GOOD | facts, needs_runtime=needs_runtime, skew_s=skew_s, gpus=None)


def test_a_good_machine_has_no_problem():
    assert found() == []
    assert diagnose(GOOD | {"gpus": CARDS, "nvidia_cards": 2}, needs_runtime=True, skew_s=0, gpus=[1]) == []


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"python": [3, 9, 2]}, "its Python is 3.9"),
        ({"has_venv": False}, "cannot make environments"),
        ({"disk_free": 2 * GIB}, "only 2.0 GiB free"),
        ({"writable": False}, "cannot be written"),
        ({"unreachable": ["10.0.0.1:4000"]}, "does not reach the server at 10.0.0.1:4000"),
        ({"open": False}, "the server does not reach it at 10.0.0.5"),
    ],
)
def test_what_keeps_a_machine_out_is_named_with_its_cure(facts, words):
    [problem] = found(**facts)
    assert words in problem.text and problem.fix and problem.is_fatal


def test_all_problems_are_told_at_once_the_worst_first():
    problems = found(lookup_s=3.0, skew_s=-10.0, open=False)
    assert [p.is_fatal for p in problems] == [True, False, False]
    assert "10 s behind" in problems[2].text and "lookups" in problems[1].text


def test_a_clock_that_is_far_off_keeps_it_out():
    assert [p.is_fatal for p in found(skew_s=400.0)] == [True]
    assert found(skew_s=0.5) == []


def test_less_disk_will_do_where_no_runtime_is_set_up():
    assert found(needs_runtime=False, disk_free=2 * GIB, has_venv=False) == []


def test_cards_without_a_driver_matter_only_to_those_who_asked_for_them():
    [problem] = found(nvidia_cards=4)
    assert "no driver" in problem.text and not problem.is_fatal
    problems = diagnose(GOOD | {"nvidia_cards": 4}, needs_runtime=True, skew_s=0, gpus=[0])
    assert problems[0].is_fatal


def test_a_gpu_that_is_not_there_is_named_with_those_that_are():
    [problem] = diagnose(GOOD | {"gpus": CARDS}, needs_runtime=True, skew_s=0, gpus=[1, 7])
    assert problem.text == "it has no GPU 7" and problem.fix == "--gpus 0,1"


def test_an_interpreter_must_have_the_servers_versions():
    facts = GOOD | {"installed": {"shoal": "0.1.0", "ray": "2.50.0"}}
    assert missing_parts(facts, {"shoal": "0.1.0"}) == []
    [problem] = missing_parts(facts, {"shoal": "0.1.0", "ray": "2.60.0"})
    assert "has ray 2.50.0, the server 2.60.0" in problem.text


def test_a_machine_offers_its_gpus_or_half_its_cores():
    assert share(GOOD, gpus=None, slots=None) == ("cpu", 4, None)
    assert share(GOOD, gpus=None, slots=7) == ("cpu", 7, None)
    assert share(GOOD | {"gpus": CARDS}, gpus=None, slots=None) == ("cuda", 2, [0, 1])
    assert share(GOOD | {"gpus": CARDS}, gpus=[1], slots=None) == ("cuda", 1, [1])
    with pytest.raises(InvalidSpec):
        share(GOOD | {"gpus": CARDS}, gpus=None, slots=4)


def pair(one, other, mb_s, latency_ms=0.2):
    return PairSpeed(one=one, other=other, latency_ms=latency_ms, mb_s=mb_s)


def test_the_machine_that_holds_the_others_up_is_named():
    pairs = [pair("a", "b", 1000), pair("a", "c", 90), pair("b", "c", 110), pair("a", "d", 990), pair("b", "d", 995),
             pair("c", "d", 100)]  # fmt: skip
    [text] = what_stands_out(pairs)
    assert text.startswith("c is slow to all others: 90 MB/s at worst")


def test_a_single_bad_way_is_told_as_one():
    pairs = [pair("a", "b", 1000), pair("a", "c", 1000), pair("b", "c", 1000, latency_ms=5.0)]
    [text] = what_stands_out(pairs)
    assert text.startswith("b – c:")


def test_equals_do_not_stand_out():
    assert what_stands_out([pair("a", "b", 900), pair("a", "c", 1000), pair("b", "c", 800)]) == []


def test_few_machines_are_measured_in_all_pairs_and_many_in_a_ring():
    assert choose_pairs(3) == [(0, 1), (0, 2), (1, 2)]
    assert len(choose_pairs(20)) == 20
