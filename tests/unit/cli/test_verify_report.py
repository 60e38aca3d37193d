"""Conclusions of verify-resume from two runs. The runs themselves: tests/integration/test_verify_resume.py."""

import json

import pytest

from shoal.cli.verify.report import Evidence, Plan, _first_metric, check, describe, read_events
from shoal.cli.verify.start import Start, check_same_weights, read_starts, remarks, uncontrolled, unseeded
from shoal.core.errors import JobFailed, UsageError
from shoal.sdk.verify import Verify

PLAN = Plan(5, 3)
WHOLE = [("started", 0), ("stopped", 8)]
BROKEN = [("started", 0), ("killed", 5), ("resumed", 5), ("stopped", 8)]


def evidence(events, path="checkpoint", failure=None):
    return Evidence("a run", list(events), failure=failure, checkpoint=path)


def test_the_plan_is_what_the_sdk_understands():
    assert json.loads(PLAN.env_value(kill=False)) == {"stop_at": 8}
    assert Verify.from_env({"SHOAL_VERIFY": PLAN.env_value(kill=True, captured=True), "SHOAL_SPOOL": "/s"}) is not None
    with pytest.raises(UsageError, match="at least one step"):
        Plan(0, 1)


def test_events_are_read_from_lines_of_any_prefix():
    lines = ["hello", '[rank0] [shoal] verify-resume: {"event": "killed", "step": 5}', "bye"]
    assert read_events(lines) == [("killed", 5)]


def test_what_went_as_planned_passes():
    check(PLAN, evidence(WHOLE), evidence(BROKEN))


@pytest.mark.parametrize(
    ("whole", "broken", "words"),
    [
        (evidence([]), evidence([]), "reported no steps to Shoal"),
        (evidence([("unprepared", 8)]), evidence([("unprepared", 5)]), "not run.prepare"),
        (evidence([], failure="ValueError: x"), evidence([]), "ValueError: x"),
        (evidence([("started", 0)], None), evidence([("started", 0)], None), "ended before step 8"),
        (evidence([("resumed", 40), ("stopped", 41)]), evidence([]), "starts from a checkpoint of step 40"),
        (evidence(WHOLE), evidence(WHOLE), "was not killed"),
        (evidence(WHOLE), evidence([("killed", 5), ("started", 0), ("stopped", 8)]), "but started from the beginning"),
        (evidence(WHOLE), evidence([("killed", 5), ("resumed", 4), ("stopped", 8)]), "but started at step 4"),
        (evidence(WHOLE), evidence(BROKEN[:3], None), "resumed run ended before step 8"),
    ],
)
def test_why_nothing_can_be_said_is_said(whole, broken, words):
    with pytest.raises(JobFailed, match=words):
        check(PLAN, whole, broken)


def test_a_difference_is_described_by_what_it_is_and_where():
    tensor = {"file": "model.pt", "where": "net.weight", "what": "tensor", "index": [0, 3], "count": 2, "of": 8}
    text = describe(tensor | {"first": 0.5, "second": 0.25, "max_difference": 0.25})
    assert text == (
        "a weight of the model, net.weight in model.pt, at [0, 3]: 0.5 unbroken, 0.25 resumed (2 of 8 values, by at most 0.25)"
    )
    value = {"file": "training.pt", "where": "rng[1].python", "what": "value", "first": 1, "second": 2}
    assert describe(value).startswith("a random generator, rng[1].python in training.pt (value): 1 unbroken")


def test_the_earliest_metric_that_differs_is_named_and_the_loss_before_others():
    first = {"loss": {5: 1.0, 6: 2.0, 7: 0.0}, "speed": {6: 10.0}, "only": {1: 1.0}}
    second = {"loss": {5: 1.0, 6: 2.5, 7: 9.0}, "speed": {6: 11.0}}
    assert _first_metric(first, second) == {"name": "loss", "step": 6, "first": 2.0, "second": 2.5}
    assert _first_metric(first, first) is None


def test_how_an_attempt_started_is_read_from_its_log_and_is_no_event():
    told = {"event": "prepared", "step": 0, "generators": {"python": "a"}, "weights": "w"}
    lines = [f"[shoal] verify-resume: {json.dumps(told)}", '[shoal] verify-resume: {"event": "killed", "step": 5}']
    assert read_starts(lines) == [Start({"python": "a"}, "w")]
    assert read_events(lines) == [("killed", 5)]


def test_a_generator_that_was_never_seeded_is_a_remark():
    whole = [Start({"python": "a", "torch": "t"}, "w")]
    broken = [Start({"python": "b", "torch": "t"}, "w"), Start({"python": "c", "torch": "u"}, "x")]
    assert uncontrolled(whole, broken) == ["python"] and uncontrolled(whole, whole) == []
    assert unseeded(broken) == ["python", "torch"] and unseeded(whole) == []
    [left_out, without_seed] = remarks(["python"], ["torch"])
    assert "Not compared" in left_out and "Python's random" in left_out
    assert "sets no seed for torch" in without_seed
    assert remarks([], []) == []


def test_copies_that_began_with_different_weights_are_not_compared():
    with pytest.raises(JobFailed, match="same weights") as refused:
        check_same_weights([Start({}, "w")], [Start({}, "x")])
    assert "torch.manual_seed" in refused.value.hint
    check_same_weights([Start({}, "w")], [Start({}, "w")])
    check_same_weights([], [])
