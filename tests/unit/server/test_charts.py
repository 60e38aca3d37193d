"""Marks and notes on curves, definitions from scripts, and layouts of charts."""

import functools

import pytest
from web_run import Run

from shoal.core.charts import LayoutSave, NoteSave
from shoal.core.errors import NotFound
from shoal.core.people import Role
from shoal.server.charts import definitions, layouts, marks
from shoal.server.charts.step_clock import StepClock
from shoal.server.jobs.events import record_event
from shoal.server.models.jobs import Attempt, Job
from shoal.testing.server import add_member, add_person


def test_marks_are_where_checkpoints_attempts_and_events_were(ctx, anna):
    run = Run(ctx, anna).steps(0, 20, loss=float)
    run.attempt().steps(12, 30, loss=float)

    def past(session):
        job = session.get_one(Job, run.id)
        record_event(session, job, "preempted", "preempted by urgent", attempt=1)
        for attempt in session.query(Attempt).filter_by(job_id=run.id):
            if attempt.number == 1:
                attempt.reason = "lost its machine"

    ctx.db.write(past)
    note = marks.add_note(ctx, anna.access(), "a-job", NoteSave(step=7, text="warm-up ends <b>"))
    found = {mark.kind: mark for mark in marks.list_marks(ctx, anna.access(), "a-job")}
    assert found["restart"].step == 12 and "lost its machine" in found["restart"].text
    assert (
        found["preempted"].text == "preempted by urgent" and found["preempted"].step == 19
    )  # the last point by the clock
    assert (found["note"].step, found["note"].text) == (7, f"warm-up ends <b> ({anna.email})")
    marks.delete_note(ctx, anna.access(), "a-job", note.id)
    assert "note" not in {mark.kind for mark in marks.list_marks(ctx, anna.access(), "a-job")}


def test_a_note_stands_at_the_time_of_its_step_not_at_that_of_its_writing(ctx, anna):
    run = Run(ctx, anna)
    for first in range(0, 60, 7):  # many blocks
        run.send(
            "metric",
            *({"k": "s", "i": i, "t": 2000.0 + 10 * i, "v": {"loss": 1.0}} for i in range(first, first + 7, 2)),
        )
    run.attempt()
    run.send("metric", *({"k": "s", "i": i, "t": 9000.0 + i, "v": {"loss": 1.0}} for i in range(40, 80)))
    for step, at in ((0, 2000), (14, 2140), (26, 2250), (39, 2390), (40, 9040), (500, 9079)):
        note = marks.add_note(ctx, anna.access(), "a-job", NoteSave(step=step, text="here"))
        assert (note.step, note.at) == (step, at)
    empty = Run(ctx, anna, "empty")
    assert marks.add_note(ctx, anna.access(), empty.id, NoteSave(step=3, text="later")).at > 1e9


def test_an_event_is_at_the_last_step_before_it(ctx, anna):
    run = Run(ctx, anna)
    for first in range(0, 50, 5):
        run.send("metric", *({"k": "s", "i": i, "t": 2000.0 + i, "v": {"loss": 1.0}} for i in range(first, first + 5)))
    with ctx.db.read() as session:
        clock = StepClock(session, run.id)
        assert [clock.step_at(at) for at in (1999.0, 2000.0, 2012.5, 2049.0, 1e9)] == [None, 0, 12, 49, 49]
        one = StepClock(session, run.id)
        assert one.step_at(2031.2) == 31 and len(one._read) <= 4  # of ten blocks


def test_a_note_is_changed_and_deleted_only_through_its_own_run(ctx, anna, berta):
    Run(ctx, anna, "mine")
    Run(ctx, anna, "other")
    Run(ctx, berta, "hers")
    note = marks.add_note(ctx, anna.access(), "mine", NoteSave(step=1, text="x"))
    for person, job in ((anna, "other"), (berta, "hers"), (berta, "mine")):
        with pytest.raises(NotFound):
            marks.delete_note(ctx, person.access(), job, note.id)
        with pytest.raises(NotFound):
            marks.change_note(ctx, person.access(), job, note.id, NoteSave(step=2, text="y"))
    changed = marks.change_note(ctx, anna.access(), "mine", note.id, NoteSave(step=2, text="y"))
    assert (changed.step, changed.text, changed.created_by) == (2, "y", anna.email)
    assert marks.list_notes(ctx, anna.access(), "mine") == [changed]


def test_a_script_defines_axes_and_charts_and_what_is_odd_in_them_is_left_out(ctx, anna):
    run = Run(ctx, anna)
    run.send(
        "metric",
        {"k": "y", "metric": "eval/*", "v": {"step": "tokens"}},
        {"k": "y", "metric": "eval/*", "v": {"goal": "min", "hidden": "yes"}},
        {"k": "y", "v": {"title": "Gap", "metrics": ["a - b", 3], "x": "tokens", "log_y": True, "more": 1}},
        {"k": "y", "v": {"title": "Empty", "metrics": []}},
        {"k": "y", "v": "odd"},
        {"k": "y", "v": {"title": 7, "metrics": ["a"]}},
    )
    found = definitions.get(ctx, anna.access(), "a-job")
    assert found.metrics == {"eval/*": {"step": "tokens", "goal": "min"}}
    assert found.charts == [{"title": "Gap", "x": "tokens", "log_y": True, "metrics": ["a - b"]}]


def test_a_layout_is_ones_own_and_the_shared_one_is_everybodys(ctx, anna):
    other = add_person(ctx, "ola@example.org")
    add_member(ctx, anna.workspace_id, other, Role.MEMBER)
    theirs = functools.partial(layouts.get, ctx, other.access(workspace_id=anna.workspace_id, role=Role.MEMBER))
    layouts.save(ctx, anna.access(), "job", {"mine": 1}, shared=False)
    layouts.save(ctx, anna.access(), "job", {"ours": 1}, shared=True)
    found = layouts.get(ctx, anna.access(), "job")
    assert (found.mine, found.shared, found.shared_by) == ({"mine": 1}, {"ours": 1}, anna.email)
    assert layouts.get(ctx, anna.access(), "runs").shared is None and (theirs("job").mine, theirs("job").shared) == (
        None,
        {"ours": 1},
    )
    layouts.delete(ctx, anna.access(), "job", shared=False)
    assert layouts.get(ctx, anna.access(), "job").mine is None


def test_a_layout_has_a_limit():
    with pytest.raises(ValueError, match="at most"):
        LayoutSave(layout={"x": "y" * 300_000})
