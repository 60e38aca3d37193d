"""Sweeps from begin to end: trials are begun, compared, ended early, reused and run again."""

import json
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import event, insert, update
from sweepworld import SweepWorld

from shoal.core.schema import utcnow
from shoal.core.sweeps import Between, Choice
from shoal.server.jobs import service as jobs
from shoal.server.models.jobs import Job
from shoal.server.models.sweeps import Trial
from shoal.server.sweeper import loop
from shoal.server.sweeper.act import act
from shoal.server.sweeper.decide import next_actions
from shoal.server.sweeper.memory import load
from shoal.server.sweeps import service as sweeps
from shoal.testing.server import add_source


@pytest.fixture
def world(tmp_path):
    made = SweepWorld(tmp_path)
    yield made
    made.ctx.db.close()


def test_a_grid_runs_all_of_it_and_never_more_than_it_may_at_once(world):
    made = world.begin(parallel=2, space={"lr": Choice(values=[3, 1, 2]), "deep": Choice(values=[True, False])})
    assert (made.status, made.trials, made.counts) == ("running", 6, {})
    assert world.run_all() == 2
    view = world.sweep()
    assert (view.status, view.counts, view.reason) == ("finished", {"done": 6}, None)
    assert (view.best.number, view.best.result, view.best.params) == (2, 1.0, {"lr": 1, "deep": True})
    assert [t.number for t in world.trials()] == list(range(6))
    assert view.slot_seconds >= 0


def test_a_trial_is_an_ordinary_job_that_is_told_its_values(world):
    world.begin(parallel=1, job={"env": {"A": "b"}, "priority": 7})
    world.go()
    [job] = world.jobs()
    spec = world.view(job.id).spec
    assert (spec.name, spec.batch, spec.priority) == ("s-0", "s", 7)
    assert spec.entry == ["train.py", "--lr", "1"]
    assert spec.env == {"A": "b", "SHOAL_PARAMS": '{"lr": 1}', "SHOAL_SWEEP": "s", "SHOAL_TRIAL": "0"}
    assert world.view(job.id).events[0].message == "trial 0 of sweep 's'"


@pytest.mark.parametrize("search", ["grid", "asha"])
def test_restarts_at_every_moment_lose_no_trial_and_repeat_none(tmp_path, search):
    pytest.importorskip("optuna")
    found = []
    for restart in (False, True):
        world = SweepWorld(tmp_path / str(restart))
        axis = Choice(values=[5, 3, 4, 1, 2]) if search == "grid" else Between(low=0.0, high=1.0)
        world.begin(parallel=2, search=search, trials=5, space={"lr": axis})
        world.run_all(restart=restart)
        found.append([(t.number, t.params, t.state, t.result) for t in world.trials()])
        assert len(world.jobs()) == len({job.name for job in world.jobs()}) == len(found[-1])
        world.ctx.db.close()
    assert found[0] == found[1]


def test_the_metric_may_come_by_steps_or_evaluations_and_its_best_value_counts(world):
    world.begin(parallel=4, metric="eval/loss", direction="max")
    world.go()
    world.report("s-0", 0.5, 0.9, 0.7)
    world.report("s-1", 0.8, name="eval/loss")
    world.report("s-2", 0.95, kind="s", name="eval/loss", step=7)
    world.report("s-3", 99.0, kind="s")
    world.report("s-3", 0.1)
    world.sweeper.pass_once()
    told = [(t.result, t.reports, t.step) for t in world.trials()]
    assert told == [(0.9, 3, 2), (0.8, 1, 0), (0.95, 1, 7), (0.1, 1, 0)]
    assert world.sweep().best.number == 2
    assert [t.number for t in world.trials(order="result")] == [2, 0, 1, 3]
    assert [t.number for t in world.trials(order="result", after=0, limit=1)] == [1]


def test_what_is_no_number_is_no_result(world):
    world.begin(parallel=4)
    world.go()
    world.report("s-0", "nan", "inf")
    world.report("s-1", "nan", 3.0)
    world.finish("s-0")
    world.sweeper.pass_once()
    first, second, *_ = world.trials()
    assert (first.state, first.result, first.reports) == ("done", None, 2)
    assert (second.result, second.reports) == (3.0, 2)
    assert [t.number for t in world.trials(order="result", after=1)] == [0, 2, 3]


def test_reports_that_come_after_the_end_still_count(world):
    world.begin(parallel=1)
    world.go()
    world.report("s-0", 5.0)
    world.finish("s-0", final=False)
    world.go()
    assert world.trials()[0].state == "running"
    assert len(world.active()) == 1  # the next one is not held up by it
    world.report("s-0", 4.0, step=1)
    world.beat(world.view("s-0").id, state="exited", exit_code=0, final=True)
    world.sweeper.pass_once()
    assert (world.trials()[0].state, world.trials()[0].result) == ("done", 4.0)


def test_reports_that_could_not_be_delivered_while_the_server_was_down_still_count(world):
    world.begin(parallel=1)
    world.go()
    world.finish("s-0", final=False)
    long_ago = update(Job).where(Job.name == "s-0").values(ended_at=utcnow() - timedelta(hours=1))
    world.ctx.db.write(lambda session: session.execute(long_ago) and None)
    world.restart()
    world.go()
    assert world.trials()[0].state == "running"
    world.report("s-0", 4.0)
    world.beat(world.view("s-0").id, state="exited", exit_code=0, final=True)
    world.sweeper.pass_once()
    assert (world.trials()[0].state, world.trials()[0].result) == ("done", 4.0)


def test_those_that_fall_behind_are_stopped_and_told_why(world):
    pytest.importorskip("optuna")
    world.begin(parallel=4, search="asha", trials=4, factor=2, space={"lr": Between(low=0.0, high=1.0)})
    world.go()
    for number, value in enumerate((0.1, 0.2, 0.3, 0.4)):
        world.report(f"s-{number}", value, value)
    world.sweeper.pass_once()
    views = [world.view(f"s-{number}") for number in range(4)]
    assert [v.stop_requested for v in views] == [False, False, True, True]
    world.stopped("s-3")
    world.stopped("s-2")
    world.restart()
    world.go()
    assert world.view("s-3").reason == "pruned: 0.4 after 2 reports, the best half had ≤ 0.2"
    assert [t.state for t in world.trials()] == ["running", "running", "pruned", "pruned"]
    assert world.trials()[3].reason.startswith("pruned: 0.4")
    for number in (0, 1):
        world.finish(f"s-{number}")
    world.go()
    view = world.sweep()
    assert (view.status, view.counts, view.best.number) == ("finished", {"done": 2, "pruned": 2}, 0)


def test_a_new_attempt_takes_the_place_of_what_the_one_before_told_behind_its_checkpoint(world):
    world.begin(parallel=1, job={"max_restarts": 3})
    world.go()
    world.report("s-0", 9.0, 8.0, 1.0)
    world.sweeper.pass_once()
    assert world.trials()[0].result == 1.0
    world.finish("s-0", -9)
    world.go()
    world.report("s-0", 7.0, 6.0, step=1)
    world.sweeper.pass_once()
    assert (world.trials()[0].result, world.trials()[0].reports) == (6.0, 3)


def test_the_same_trial_is_not_run_twice_in_a_workspace(world):
    world.begin(parallel=4)
    world.run_all()
    ran = len(world.jobs())
    world.begin("again", space={"lr": Choice(values=[2, 9])})
    world.run_all(name="again")
    first, second = world.trials("again")
    assert (first.state, first.result, first.job, first.reason) == ("reused", 2.0, "s-1", "the same as job 's-1'")
    assert (second.state, second.job) == ("done", "again-1")
    assert len(world.jobs()) == ran + 1
    code = {"source_id": add_source(world.ctx, world.anna, b"print('other')\n")}
    world.begin("other-code", job=code, space={"lr": Choice(values=[2])})
    world.begin("other-size", job={"accels": 2}, space={"lr": Choice(values=[2])})
    world.begin("other-metric", metric="accuracy", space={"lr": Choice(values=[2])})
    world.go()
    assert {job.name for job in world.active()} == {"other-code-0", "other-size-0", "other-metric-0"}


def test_the_same_code_pushed_again_is_the_same(world):
    world.begin(parallel=4)
    world.run_all()
    world.begin("again", job={"source_id": add_source(world.ctx, world.anna)})
    world.go()
    assert world.sweep("again").counts == {"reused": 4}
    assert world.sweep("again").status == "finished"


def test_a_deleted_job_is_not_reused_and_the_sweep_keeps_its_result(world):
    world.begin(space={"lr": Choice(values=[2])})
    world.run_all()
    jobs.delete(world.ctx, world.access, "s-0")
    [trial] = world.trials()
    assert (trial.state, trial.result, trial.job, trial.job_id) == ("done", 2.0, "s-0", None)
    world.begin("again", space={"lr": Choice(values=[2])})
    world.go()
    assert world.trials("again")[0].state == "running"


def test_a_job_deleted_by_hand_ends_its_trial_and_no_more(world):
    world.begin(parallel=1, space={"lr": Choice(values=[1, 2])})
    world.go()
    jobs.stop(world.ctx, world.access, "s-0")
    world.stopped("s-0")
    jobs.delete(world.ctx, world.access, "s-0")
    world.run_all()
    assert [(t.state, t.reason) for t in world.trials()] == [("stopped", "its job was deleted"), ("done", None)]
    assert world.sweep().status == "finished"


def test_a_job_that_takes_a_trials_name_meanwhile_does_not_stop_the_sweep(world):
    world.begin(parallel=1)
    world.go()
    world.submit("s-1")
    world.report("s-0", 1.0)
    world.finish("s-0")
    world.sweeper.pass_once()
    second = world.trials()[1]
    assert second.job.startswith("s-1-")
    assert json.loads(world.view(second.job).spec.env["SHOAL_PARAMS"]) == {"lr": 2}


def test_time_left_follows_from_those_that_ended_and_how_many_run(world):
    world.begin(parallel=2, space={"lr": Choice(values=list(range(10)))})
    world.go()
    assert world.sweep().eta_s is None
    world.report("s-0", 1.0)
    world.finish("s-0")
    world.go()
    left = world.sweep().eta_s
    assert left is not None and 0 <= left < 60
    assert sweeps.summaries(world.ctx, world.access)[0].eta_s == pytest.approx(left, abs=1)


def test_a_pass_over_many_trials_asks_the_database_no_more_than_over_few(tmp_path):
    counted = {}
    for ended in (10, 600):
        world = SweepWorld(tmp_path / str(ended))
        world.begin(parallel=3, space={"lr": Choice(values=list(range(700)))})
        fill(world.ctx, world.sweep().id, ended)
        world.go()
        for number in range(ended, ended + 3):
            world.report(f"s-{number}", 1.0)
        world.finish(f"s-{ended}")
        with counting(world.ctx) as statements:
            world.sweeper.pass_once()
        assert world.trials(after=ended - 1, limit=1)[0].state == "done"
        assert world.trials(after=ended + 2, limit=1)[0].state == "running"
        counted[ended] = len(statements)
        world.ctx.db.close()
    assert counted[600] == counted[10] <= 30


def test_many_trials_are_begun_together(world):
    world.begin(parallel=150, space={"lr": Choice(values=list(range(150)))})
    with counting(world.ctx) as statements:
        world.sweeper.pass_once()
    assert len(world.jobs()) == 150 and len(statements) < 40
    assert [job.name for job in world.jobs()] == [f"s-{number}" for number in range(150)]  # in the order of their ids


def test_what_was_decided_before_somebody_stopped_the_sweep_is_not_done(world):
    sweep = world.begin()
    with world.ctx.db.read() as session:
        memory = load(session, sweep.id)
    sweeps.stop(world.ctx, world.access, "s")
    assert act(world.ctx, memory, next_actions(memory.sight())) is None
    assert world.jobs() == []


def fill(ctx, sweep_id, count):
    row = {"sweep_id": sweep_id, "job_name": "gone", "state": "done", "result": 1.0, "reports": 1, "curve": [[1, 1.0]]}
    now = utcnow()
    rows = [
        row | {"number": n, "params": {"lr": n}, "key": str(n), "created_at": now, "ended_at": now}
        for n in range(count)
    ]
    ctx.db.write(lambda session: session.execute(insert(Trial), rows) and None)


@contextmanager
def counting(ctx):
    statements = []

    def note(_connection, _cursor, statement, *_):
        statements.append(statement)

    engines = (ctx.db.reader, ctx.db.writer)
    for engine in engines:
        event.listen(engine, "before_cursor_execute", note)
    yield statements
    for engine in engines:
        event.remove(engine, "before_cursor_execute", note)


def test_a_sweep_that_cannot_be_processed_keeps_no_other_waiting_and_makes_the_loop_fail(world, monkeypatch):
    """The loop must fail: otherwise `/health` says that all is well while a sweep stands still."""
    broken = world.begin("broken").id
    world.begin("well")

    def fails_for_one(ctx, memory, actions, **more):
        if memory.id == broken:
            raise KeyError("planted")
        return act(ctx, memory, actions, **more)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "act", fails_for_one)
        with pytest.raises(KeyError, match="planted"):
            world.sweeper.pass_once()
    assert {job.name.rpartition("-")[0] for job in world.jobs()} == {"well"}
    world.sweeper.pass_once()
    assert {job.name.rpartition("-")[0] for job in world.jobs()} == {"well", "broken"}
