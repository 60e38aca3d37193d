"""Sweeps that fail, are stopped, gone on with, deleted, or refused to begin with."""

import pytest
from sweepworld import SweepWorld

from shoal.core.artifacts import FileEntry, Manifest
from shoal.core.datasets import DatasetBegin
from shoal.core.errors import CanNeverRun, InvalidName, InvalidSpec, NameTaken, NotAllowedNow, NotFound
from shoal.core.sweeps import Choice
from shoal.server.artifacts import datasets, upkeep
from shoal.server.jobs import service as jobs
from shoal.server.sweeps import service as sweeps


@pytest.fixture
def world(tmp_path):
    made = SweepWorld(tmp_path)
    yield made
    made.ctx.db.close()


def test_a_sweep_whose_first_trials_all_fail_gives_up_and_may_be_gone_on_with(world):
    world.begin(parallel=1)
    for number in range(3):
        world.go()
        world.finish(f"s-{number}", 1, reason=f"ValueError: {number}")
    world.go()
    view = world.sweep()
    assert (view.status, view.counts) == ("failed", {"failed": 3})
    assert view.reason == "3 trials failed and none succeeded, so no more are started: rank 0 on node 0: ValueError: 0"
    assert len(world.jobs()) == 3
    sweeps.rerun(world.ctx, world.access, "s")
    world.go()
    assert [job.name for job in world.active()] == ["s-3"]


def test_failed_trials_run_again_under_their_numbers_as_the_same_jobs(world):
    world.begin(parallel=2)
    world.go()
    world.finish("s-0", 1, reason="no luck")
    world.go()
    for number in (1, 2, 3):
        world.report(f"s-{number}", float(number))
        world.finish(f"s-{number}")
        world.go()
    assert (world.sweep().status, world.sweep().counts) == ("finished", {"failed": 1, "done": 3})
    with pytest.raises(NotAllowedNow, match="nothing to run again") as refused:
        sweeps.rerun(world.ctx, world.access, "s")
    assert refused.value.hint == "shoal sweep rerun s --failed"
    assert sweeps.rerun(world.ctx, world.access, "s", failed=True).status == "running"
    world.restart()
    world.go()
    assert [job.name for job in world.active()] == ["s-0"]
    assert world.view("s-0").attempts == 2
    world.report("s-0", 0.5)
    world.finish("s-0")
    world.go()
    view = world.sweep()
    assert (view.status, view.counts, view.best.number) == ("finished", {"done": 4}, 0)
    assert len(world.jobs()) == 4


def test_a_failed_trial_whose_job_is_gone_gets_a_new_one(world):
    world.begin(space={"lr": Choice(values=[1, 2])}, parallel=2)
    world.go()
    world.finish("s-0", 1)
    world.finish("s-1")
    world.go()
    jobs.delete(world.ctx, world.access, "s-0")
    sweeps.rerun(world.ctx, world.access, "s", failed=True)
    world.go()
    [job] = world.active()
    assert (job.name, job.spec["entry"]) == ("s-0", ["train.py", "--lr", "1"])
    assert world.trials()[0].job_id == job.id


def test_every_trial_failing_is_a_failed_sweep_with_the_first_reason(world):
    world.begin(space={"lr": Choice(values=[1, 2])}, parallel=2)
    world.go()
    for number in (1, 0):
        world.finish(f"s-{number}", 1, reason=f"bad {number}")
    world.go()
    assert world.sweep().reason == "all 2 trials failed: rank 0 on node 0: bad 0"
    assert world.sweep().status == "failed"


def test_a_script_may_say_that_its_trial_should_not_run(world):
    world.begin(space={"lr": Choice(values=[1])})
    world.go()
    world.finish("s-0", 77, reason="exit code 77: skipped: 2,000,000 parameters are too many")
    world.go()
    [trial] = world.trials()
    assert (trial.state, trial.reason) == ("skipped", "2,000,000 parameters are too many")
    assert world.sweep().status == "finished"


def test_stopping_ends_what_runs_and_begins_no_more_until_it_is_gone_on_with(world):
    world.begin(parallel=2)
    world.go()
    view = sweeps.stop(world.ctx, world.access, "s")
    assert (view.status, view.stop_requested) == ("running", True)
    assert sweeps.stop(world.ctx, world.access, "s").reason == "stopped by anna@example.org"
    world.restart()
    world.go()
    for number in (0, 1):
        assert world.view(f"s-{number}").stop_requested
        world.stopped(f"s-{number}")
    with pytest.raises(NotAllowedNow, match="stopping"):
        sweeps.rerun(world.ctx, world.access, "s")
    world.go()
    view = world.sweep()
    assert (view.status, view.reason, view.counts) == ("stopped", "stopped by anna@example.org", {"stopped": 2})
    assert len(world.jobs()) == 2
    sweeps.rerun(world.ctx, world.access, "s")
    world.run_all()
    assert (world.sweep().status, world.sweep().counts, len(world.jobs())) == ("finished", {"done": 4}, 4)


def test_stopping_a_sweep_stops_those_that_wait_at_once(tmp_path):
    world = SweepWorld(tmp_path, slots=1)
    world.begin(parallel=4)
    world.go()
    assert [job.state for job in world.jobs()] == ["running", "running", "queued", "queued"]
    sweeps.stop(world.ctx, world.access, "s")
    world.go()
    assert [job.state for job in world.jobs()] == ["running", "running", "stopped", "stopped"]
    world.ctx.db.close()


def test_deleting_leaves_the_jobs_or_takes_those_of_its_own(world):
    world.begin()
    with pytest.raises(NotAllowedNow, match="only a sweep that has ended"):
        sweeps.delete(world.ctx, world.access, "s")
    world.run_all()
    world.begin("again", space={"lr": Choice(values=[1, 8])})
    world.run_all(name="again")
    sweeps.delete(world.ctx, world.access, "again", jobs=True)
    assert {job.name for job in world.jobs()} == {"s-0", "s-1", "s-2", "s-3"}
    sweeps.delete(world.ctx, world.access, "s")
    assert len(world.jobs()) == 4
    with pytest.raises(NotFound, match="no sweep 's'"):
        world.sweep()


def test_what_cannot_work_is_refused_with_what_to_do(world):
    with pytest.raises(CanNeverRun):
        world.begin(job={"accels": 99})
    with pytest.raises(NotFound, match="no source"):
        world.begin(job={"source_id": "src_unknown"})
    with pytest.raises(InvalidName, match="at most 61 letters"):
        world.begin("x" * 62)
    with pytest.raises(InvalidSpec, match="1,000,000 trials"):
        world.begin(space={name: Choice(values=list(range(100))) for name in "abc"})
    world.begin()
    with pytest.raises(NameTaken, match="already a sweep 's'"):
        world.begin()
    world.submit("taken-3")
    with pytest.raises(NameTaken, match="'taken-3'"):
        world.begin("taken")
    assert [s.name for s in sweeps.summaries(world.ctx, world.access)] == ["s"]


def test_what_a_sweep_needs_is_not_cleared_away_while_it_has_no_jobs(world):
    data = datasets.begin(world.ctx, world.access, DatasetBegin(name="d")).id
    datasets.commit(world.ctx, world.access, data, Manifest(files=[FileEntry(path="a", size=0, chunks=[])]))
    world.begin(job={"datasets": ["d"]})
    datasets.delete(world.ctx, world.access, "d")
    before = set(world.ctx.store.list_manifests())
    upkeep.gc(world.ctx, grace_s=-1, dry_run=False)
    assert set(world.ctx.store.list_manifests()) == before and len(before) == 2  # the code and the data
    world.go()
    assert [job.inputs[0]["name"] for job in world.active()] == ["d"]
