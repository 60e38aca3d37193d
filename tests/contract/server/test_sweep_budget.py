"""A sweep's budget: of all its trials together, without those it only reuses."""

from dataclasses import replace

import pytest
from sweepworld import SweepWorld

from shoal.core.errors import InvalidSpec, NotAllowedNow
from shoal.core.states import JobState, NodeState
from shoal.core.sweeps import SweepState
from shoal.server.billing.usage_clock import UsageClock
from shoal.server.sweeps import service as sweeps


@pytest.fixture
def world(tmp_path):
    world = SweepWorld(tmp_path)
    world.now = 1.8e9
    world.ctx.usage_clock = UsageClock(wall_s=lambda: world.now, boot_s=lambda: world.now, boot="b")
    yield world
    world.ctx.db.close()


def test_a_sweep_is_stopped_when_its_trials_have_used_its_budget(world):
    world.begin(parallel=2, budget="100s")
    world.go()
    for _ in range(20):
        world.now += 3
        stops = [world.beat(job.id, state=NodeState.RUNNING).stop for job in world.active()]
        world.go()
        if any(stops):
            break
    assert stops == [True, True]
    for job in world.active():
        world.finish(job.name, 143, told=True)
    world.go()
    sweep = world.sweep()
    assert sweep.status is SweepState.STOPPED and sweep.reason == "budget of 100s of slot time reached"
    assert [job.state for job in world.jobs()] == [JobState.STOPPED, JobState.STOPPED]
    assert 60 <= sweep.slot_seconds <= 100


def test_a_sweep_that_has_spent_all_does_not_go_on(world):
    world.begin(budget="100s")
    world.go()
    for _ in range(9):
        world.now += 15
        world.beat(world.active()[0].id, state=NodeState.RUNNING)
    world.finish(world.active()[0].name, 1)
    sweeps.stop(world.ctx, world.access, "s")
    world.go()
    with pytest.raises(NotAllowedNow, match="used up its budget") as refused:
        sweeps.rerun(world.ctx, world.access, "s", failed=True)
    assert "shoal sweep run s-more" in refused.value.hint


def test_a_sweeps_budget_of_money_needs_a_price_too(world):
    with pytest.raises(InvalidSpec, match="have no price here"):
        world.begin(budget="5.00")
    world.ctx.settings = replace(world.ctx.settings, price_cpu=1.0)
    assert world.begin(budget="5").spec.budget == "5.00"
