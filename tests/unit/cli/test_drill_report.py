"""Conclusions of a drill from the records of two copies. The copies themselves: tests/integration/test_drill.py."""

import pytest

from shoal.cli.training.drill_evidence import Copy, DrillLine, by_attempt, read_drill_lines
from shoal.cli.training.drill_report import check, report
from shoal.core.drills import Fault, Plan
from shoal.core.errors import JobFailed
from shoal.core.jobs import LogLine

KILL = Fault(what="kill", at=30, rank=1)
TERM = Fault(what="sigterm", at=50, node=0)


def loss(step):
    return 1 / step


def steps(first, last, of=loss):
    return {step: of(step) for step in range(first, last + 1)}


def reference(end=70, **more):
    return Copy("ref", "succeeded", told=[DrillLine("going", 1, 0.0), DrillLine("ended", 1, 70.0, end)],
                points={"loss": {1: steps(1, end)}, **more})  # fmt: skip


def drilled(*attempts, told=(), status="succeeded", **fields):
    return Copy("drilled", status, told=list(told), points={"loss": dict(enumerate(attempts, 1))}, **fields)


KILLED = [DrillLine("going", 1, 0.0), DrillLine("fault", 1, 30.0, 30, 0)]


def only(plan, copy, whole=None):
    found = report(plan, whole or reference(), copy)
    return found, found["faults"][0]


def test_a_job_that_resumes_well_lost_the_steps_since_its_checkpoint_and_is_exact():
    told = [*KILLED, DrillLine("going", 2, 37.5, 25), DrillLine("ended", 2, 80.0, 70)]
    found, row = only(Plan(70, (KILL,)), drilled(steps(1, 29), steps(26, 70), told=told))
    assert (row["survived"], row["steps_lost"], row["exact"], row["recover_s"]) == (True, 5, True, 7.5)
    assert found["survived"] and found["exact"] and found["steps_lost"] == 5 and found["notes"] == []
    assert found["resumed"] and row["resumed"]


def test_a_job_that_begins_again_is_told_to_have_lost_everything():
    told = [*KILLED, DrillLine("going", 2, 31.0, 0), DrillLine("ended", 2, 80.0, 70)]
    found, row = only(Plan(70, (KILL,)), drilled(steps(1, 30), steps(1, 70), told=told))
    assert (row["survived"], row["steps_lost"], row["exact"]) == (True, 30, True)
    assert row["note"] == "started again from the beginning" and found["survived"] and not found["resumed"]


def test_a_job_that_begins_again_from_its_first_checkpoint_has_not_gone_on_either():
    whole = Copy("ref", "succeeded", told=[DrillLine("going", 1, 0.0, 20), DrillLine("ended", 1, 70.0, 70)],
                 points={"loss": {1: steps(21, 70)}})  # fmt: skip
    told = [DrillLine("going", 1, 0.0, 20), KILLED[1], DrillLine("going", 2, 31.0, 20), DrillLine("ended", 2, 80.0, 70)]
    found, row = only(Plan(70, (KILL,)), drilled(steps(21, 30), steps(21, 70), told=told), whole)
    assert (row["steps_lost"], row["resumed"], found["resumed"]) == (10, False, False)
    assert row["note"] == "started again from step 20, where the job starts"


def test_a_job_that_resumes_on_other_data_is_not_exact_from_the_step_where_it_shows():
    told = [*KILLED, DrillLine("going", 2, 31.0, 25), DrillLine("ended", 2, 80.0, 70)]
    resumed = steps(26, 27) | steps(28, 70, lambda s: 2 / s)
    found, row = only(Plan(70, (KILL,)), drilled(steps(1, 30), resumed, told=told))
    assert row["survived"] and row["steps_lost"] == 5 and row["exact"] is False and found["exact"] is False
    assert row["first_difference"] == {"step": 28, "metric": "loss", "undisturbed": 1 / 28, "drilled": 2 / 28}


def test_what_an_earlier_fault_has_spoilt_is_not_blamed_on_a_later_one():
    told = [*KILLED, DrillLine("going", 2, 31.0, 25), DrillLine("fault", 2, 50.0, 50, 1), DrillLine("going", 3, 60.0, 51),
            DrillLine("ended", 3, 80.0, 70)]  # fmt: skip
    copy = drilled(steps(1, 30), steps(26, 51, lambda s: 2 / s), steps(52, 70, lambda s: 2 / s), told=told)
    rows = report(Plan(70, (KILL, TERM)), reference(), copy)["faults"]
    assert [row["exact"] for row in rows] == [False, None]
    assert [row["steps_lost"] for row in rows] == [5, 0]  # it made one step more, and saved it, before it left


def test_a_job_that_does_not_go_on_has_not_survived_and_the_reason_is_told():
    copy = drilled(steps(1, 30), told=KILLED, status="failed", reason="gone", ends={1: "rank 1: SIGKILL"})
    found, row = only(Plan(70, (KILL,)), copy)
    assert (row["survived"], row["steps_lost"], row["recover_s"]) == (False, None, None)
    assert "rank 1: SIGKILL" in row["note"] and not found["survived"] and found["exact"] is False


def test_one_that_ends_early_as_if_it_were_done_has_not_survived():
    told = [*KILLED, DrillLine("going", 2, 31.0, 25)]
    found, row = only(Plan(70, (KILL,)), drilled(steps(1, 30), steps(26, 40), told=told))
    assert row["survived"] and not found["survived"]
    assert found["ended"] == {"status": "succeeded", "step": 40, "reason": None}


def test_a_fault_that_never_happened_is_not_claimed_to_be_survived():
    found, row = only(
        Plan(70, (KILL,)), drilled(steps(1, 70), told=[DrillLine("going", 1, 0.0), DrillLine("ended", 1, 70.0, 70)])
    )
    assert row["happened"] is False and row["survived"] is None and not found["survived"]
    assert "rank1 reported no step 30" in row["note"]


def test_an_outage_is_survived_where_no_step_is_missing_and_tells_how_long_the_rest_took_to_arrive():
    away = Fault(what="server-down", at=10, seconds=20)
    told = [DrillLine("going", 1, 0.0), DrillLine("fault", 1, 10.0, 10, 0), DrillLine("cut", 1, 10.2, 0, 0), DrillLine("back", 1, 30.2, 0, 0),
            DrillLine("caught_up", 1, 32.7, 0, 0), DrillLine("ended", 1, 70.0, 70)]  # fmt: skip
    times = {1: {s: float(s) for s in range(1, 71)}}
    found, row = only(Plan(70, (away,)), drilled(steps(1, 70), told=told, times=times))
    assert (row["survived"], row["steps_lost"], row["exact"], row["recover_s"]) == (True, 0, True, 2.5)
    assert row["note"] == "20 steps during the outage, at most 1.0 s between two" and found["survived"]
    holed = {s: v for s, v in steps(1, 70).items() if s not in (15, 16)}
    _, row = only(Plan(70, (away,)), drilled(holed, told=told, times=times))
    assert row["survived"] is False and row["note"] == "2 steps are missing from its metrics"


def test_a_slow_worker_is_told_by_what_it_does_to_the_pace():
    slow = Fault(what="slow", at=1, rank=1, factor=3.0)
    told = [DrillLine("going", 1, 0.0), DrillLine("ended", 1, 210.0, 70)]
    whole = reference()
    whole.times = {1: {s: 0.1 * s for s in range(1, 71)}}
    copy = drilled(steps(1, 70), told=told, times={1: {s: 0.29 * s for s in range(1, 71)}})
    _, row = only(Plan(70, (slow,)), copy, whole)
    assert row["survived"] and row["exact"] and "2.9 times as long per step" in row["note"]


def test_metrics_of_time_do_not_count_nor_do_those_that_chance_decides():
    told = [*KILLED, DrillLine("going", 2, 31.0, 25), DrillLine("ended", 2, 80.0, 70)]
    whole = reference(samples_per_s={1: steps(1, 70)}, noise={1: steps(1, 70)})
    copy = drilled(steps(1, 30), steps(26, 70), told=told)
    copy.points |= {"samples_per_s": {1: steps(1, 70, lambda s: -s)}, "noise": {1: steps(1, 70, lambda s: -s)}}
    found, row = only(Plan(70, (KILL,)), copy, whole)
    assert row["exact"] is True and found["compared"] == ["loss"]


def test_a_script_without_a_seed_is_told_that_nothing_can_be_said():
    told = [*KILLED, DrillLine("going", 2, 31.0, 25), DrillLine("ended", 2, 80.0, 70)]
    copy = drilled(steps(1, 30, lambda s: 3 / s), steps(26, 70, lambda s: 4 / s), told=told)
    found, row = only(Plan(70, (KILL,)), copy)
    assert row["exact"] is None and found["exact"] is None and found["survived"]
    assert "differ before the first fault" in found["notes"][0] and "seed" in found["notes"][0]


def test_an_attempt_that_ended_for_another_reason_is_told_of():
    told = [DrillLine("going", 1, 0.0), DrillLine("going", 2, 5.0, 4), DrillLine("ended", 2, 80.0, 70)]
    copy = drilled(steps(1, 5), steps(5, 70), told=told, ends={1: "made way for 'big'"})
    found, _ = only(Plan(70, (KILL,)), copy)
    assert found["notes"] == ["attempt 1 ended for another reason: made way for 'big'"]


@pytest.mark.parametrize(
    ("copy", "words"),
    [
        (Copy("ref", "failed", "ValueError: no data"), "ValueError: no data"),
        (Copy("ref", "succeeded"), "reported no steps to Shoal"),
        (Copy("ref", "succeeded", told=[DrillLine("going", 1, 0.0, 100)]), "starts from a checkpoint of step 100"),
        (reference(end=20), "ended at step 20"),
    ],
)
def test_where_nothing_can_be_said_the_reason_is(copy, words):
    with pytest.raises(JobFailed, match=words):
        check(Plan(70, (KILL,)), copy)


def test_points_are_told_apart_by_attempt_and_given_their_times():
    view = {
        "starts": {"1": 1, "2": 3},
        "metrics": {"loss": [[1, 0.1], [2, 0.2], [3, 0.33]]},
        "ghosts": {"loss": [[3, 0.3, 1], [4, 0.4, 1]]},
    }
    assert by_attempt(view, "loss") == {1: {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}, 2: {3: 0.33}}
    times = {
        "metrics": {"loss": [[10.0, 0.1], [11.0, 0.2], [20.0, 0.33]]},
        "ghosts": {"loss": [[12.0, 0.3, 1], [13.0, 0.4, 1]]},
    }
    assert by_attempt(view, "loss", times) == {1: {1: 10.0, 2: 11.0, 3: 12.0, 4: 13.0}, 2: {3: 20.0}}


def test_lines_of_the_drill_are_found_among_a_scripts_own():
    text = '[shoal] drill: {"event": "fault", "step": 30, "fault": 0, "t": 5.5}'
    lines = [
        LogLine(at=1, attempt=1, node=0, rank=1, text="loss 3"),
        LogLine(at=2, attempt=1, node=0, rank=1, text=text),
    ]
    assert read_drill_lines(lines) == [DrillLine("fault", 1, 5.5, 30, 0)]
