"""The queue at work on a server: quotas under racing submits, making way and coming back, what is remembered."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from queueworld import TwoMachines, World
from sqlalchemy import select, update

from shoal.core.errors import CanNeverRun, NotFound
from shoal.core.jobs import Progress
from shoal.core.queue import JobChange, QuotaSet
from shoal.core.states import JobState, NodeState
from shoal.server.jobs import attempts
from shoal.server.jobs import service as jobs
from shoal.server.models.jobs import Attempt, Job
from shoal.server.queue import quotas
from shoal.server.queue import service as queue_service
from shoal.server.scheduler.decide import Placement
from shoal.server.scheduler.state import QueueMemory


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path, TwoMachines())
    yield world
    world.ctx.db.close()


@pytest.fixture
def wide(tmp_path):
    world = World(tmp_path, TwoMachines(slots=32))
    yield world
    world.ctx.db.close()


def test_two_hundred_racing_submits_hold_exactly_the_quota_at_every_moment(wide):
    quotas.set_quota(wide.ctx, wide.anna.workspace_id, QuotaSet(slots=10))
    done, most = threading.Event(), []

    def schedule():
        while not done.is_set():
            wide.scheduler.pass_once()

    def look():
        while not done.is_set():
            most.append(wide.held(wide.anna))

    helpers = [threading.Thread(target=work) for work in (schedule, look)]
    for helper in helpers:
        helper.start()
    with ThreadPoolExecutor(32) as pool:
        ids = list(pool.map(lambda i: wide.submit(f"race-{i}"), range(200)))
    done.set()
    for helper in helpers:
        helper.join()
    wide.scheduler.pass_once()
    assert len(set(ids)) == 200
    assert wide.held(wide.anna) == 10 and max(most) <= 10
    waiting = wide.ctx.live.waiting
    assert len(waiting) == 190
    assert set(waiting.values()) == {"its workspace may hold 10 slots at once, and holds 10 now"}


def test_a_quota_lowered_between_the_decision_and_the_start_holds(world):
    job = world.submit()
    quotas.set_quota(world.ctx, world.anna.workspace_id, QuotaSet(slots=0))
    made = world.ctx.db.write(lambda s: attempts.create(s, job, [Placement("x", (0,))], "att_1", b"h"))
    assert made is None and world.view(job).status is JobState.QUEUED


def test_a_job_larger_than_the_quota_or_on_machines_that_are_not_there_is_refused(world):
    quotas.set_quota(world.ctx, world.anna.workspace_id, QuotaSet(slots=2))
    with pytest.raises(CanNeverRun, match="may hold 2 slot"):
        world.submit(accels=3)
    with pytest.raises(NotFound, match="no machine 'z'"):
        world.submit(exclude=["z"])
    with pytest.raises(CanNeverRun, match="without the excluded machines has 1 machine with 4 slots"):
        world.submit(min_nodes=2, max_nodes=2, accels=4, exclude=["x"])


def test_quotas_are_for_admins_and_are_named_by_owner_where_a_name_is_not_enough(world):
    assert world.as_berta.get("/admin/quotas").status_code == 403
    assert world.as_anna.request("PATCH", "/admin/quotas/default", json={"slots": 1}).status_code == 422
    changed = world.as_anna.request(
        "PATCH", f"/admin/quotas/{world.berta.workspace_id}", json={"slots": 3, "weight": 2}
    )
    assert (changed.json()["slots"], changed.json()["weight"], changed.json()["owner"]) == (3, 2.0, world.berta.email)
    free = world.as_anna.request("PATCH", f"/admin/quotas/{world.berta.workspace_id}", json={"unlimited": True})
    assert (free.json()["slots"], free.json()["weight"]) == (None, 2.0)
    assert world.as_anna.request("PATCH", "/admin/quotas/nobody", json={"slots": 1}).status_code == 404
    for bad in ({"slots": -1}, {"weight": 0}, {"slot": 1}):
        assert world.as_anna.request("PATCH", f"/admin/quotas/{world.berta.workspace_id}", json=bad).status_code == 422


def test_a_job_makes_way_saves_and_comes_back(world):
    low = world.submit("low", min_nodes=2, max_nodes=2, accels=4, max_restarts=0)
    world.tick()
    urgent = world.submit("urgent", accels=4, priority=5)
    world.tick()
    assert world.view(urgent).status is JobState.QUEUED
    assert "1 job of lower priority will be preempted" in world.view(urgent).waiting
    told = world.beat(low, state=NodeState.RUNNING)
    assert told.stop or told.beat_in_s, "asked nicely, as a stop does, both nodes at one moment"
    assert not told.fenced
    for node in range(2):
        world.beat(low, node, state=NodeState.EXITED, exit_code=-15, told=True)
    view = world.view(low)
    assert (view.status, view.attempt_list[0].result, view.stop_requested) == (JobState.QUEUED, "preempted", False)
    assert "preempted by job 'urgent' with priority 5" in view.attempt_list[0].reason
    world.tick()
    assert world.view(urgent).status is JobState.RUNNING
    assert world.view(low).status is JobState.QUEUED
    world.end(urgent)
    world.tick()
    assert (world.view(low).status, world.view(low).attempts) == (JobState.RUNNING, 2)


def test_a_stop_by_a_person_outdoes_making_way(world):
    low = world.submit("low", min_nodes=2, max_nodes=2, accels=4)
    world.tick()
    world.submit("urgent", accels=4, priority=5)
    world.tick()
    jobs.stop(world.ctx, world.anna.access(), low)
    for node in range(2):
        world.beat(low, node, state=NodeState.EXITED, exit_code=-15, told=True)
    assert world.view(low).status is JobState.STOPPED


def test_another_workspaces_job_makes_way_without_learning_the_name(world):
    low = world.submit("low", person=world.berta, min_nodes=2, max_nodes=2, accels=4)
    world.tick()
    world.submit("hush", accels=4, priority=5)
    world.tick()
    told = world.as_berta.get(f"/workspaces/default/jobs/{low}").text
    assert "a job of another workspace" in told and "hush" not in told


def test_time_spent_waiting_does_not_count_as_time_run(world):
    low = world.submit("low", accels=4, time_limit_s=600)
    world.tick()
    hours = timedelta(hours=2)

    def long_ago(session):
        """It ran for a minute, two hours ago, and has waited ever since."""
        job, attempt = session.get(Job, low), session.scalars(select(Attempt)).one()
        attempt.state, attempt.ended_at = "ended", attempt.started_at - hours + timedelta(minutes=1)
        attempt.started_at -= hours
        job.started_at, job.state = attempt.started_at, "queued"

    world.ctx.db.write(long_ago)
    world.tick()
    world.tick()
    assert world.view(low).status is JobState.RUNNING and not world.view(low).stop_requested
    back = update(Attempt).where(Attempt.number == 2).values(started_at=world.view(low).created_at - hours)
    world.ctx.db.write(lambda s: s.execute(back) and None)
    world.tick()
    assert world.view(low).stop_requested


def test_what_was_used_is_the_same_after_a_restart(world):
    for name in "abc":
        world.submit(name, accels=2)
    world.tick()
    world.end(world.view("a").id)
    world.tick()

    def used(memory):
        with world.ctx.db.read() as session:
            shares = memory.read(session, world.ctx.engine.capacity(), world.ctx.settings).shares
        return shares[world.anna.workspace_id].used_s

    assert used(QueueMemory()) == pytest.approx(used(world.ctx.queue), rel=0.2)
    assert used(QueueMemory()) > 0


def test_jobs_like_earlier_ones_are_expected_to_take_as_long(world):
    first = world.submit("first")
    world.tick()
    world.end(first)
    times = update(Job).where(Job.id == first).values(started_at=world.view(first).ended_at - timedelta(minutes=5))
    world.ctx.db.write(lambda s: s.execute(times) and None)
    world.submit("again")
    with world.ctx.db.read() as session:
        [queued] = QueueMemory().read(session, world.ctx.engine.capacity(), world.ctx.settings).queue
    assert queued.expected_s == pytest.approx(300, abs=1)


def test_a_failed_job_is_never_at_100_percent(world):
    job = world.submit(max_restarts=0)
    world.tick()
    world.end(job, code=1, failed_rank=0, progress=Progress(step=8, total=8, fraction=1.0))
    view = world.view(job)
    assert (view.status, view.exit_code) == ("failed", 1)
    assert view.progress.fraction == 0.99 and view.progress.step == 8


def test_a_change_made_while_the_queue_is_read_is_seen_by_the_next_pass(world):
    ctx, job = world.ctx, world.submit(accels=1)
    memory = ctx.queue

    def seen(session):
        queue = memory.read(session, ctx.engine.capacity(), ctx.settings).queue
        return next(queued.accels for queued in queue if queued.job_id == job)

    with ctx.db.read() as early:
        early.execute(select(Job.id)).all()  # from here on it sees the database as it is now
        queue_service.change(ctx, world.anna.access(), job, JobChange(accels=2))
        assert seen(early) == 1
    with ctx.db.read() as session:
        assert seen(session) == 2
