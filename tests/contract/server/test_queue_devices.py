"""Kinds of slots on a server: where jobs land, what is refused with which words, and the server's own machine drained."""

import pytest
from queueworld import World
from sqlalchemy import update

from shoal.core.errors import CanNeverRun, Refused
from shoal.core.queue import JobChange, JobWish
from shoal.engines.base import AgentState, Machine
from shoal.server.models.jobs import Job
from shoal.server.services import jobs, pool, pool_own, preflights, queue
from shoal.testing.server import IdleEngine


class Kinds(IdleEngine):
    """The server's own CPUs, and a machine with GPUs."""

    def __init__(self):
        super().__init__()
        self.machines = [Machine(name="local", kind="cpu", slots=4), Machine(name="gpu1", kind="cuda", slots=8)]

    def capacity(self):
        return list(self.machines)

    def status(self, attempt_id, node):
        return AgentState.ALIVE


@pytest.fixture
def engine():
    return Kinds()


@pytest.fixture
def world(tmp_path, engine):
    world = World(tmp_path, engine)
    yield world
    world.ctx.db.close()


def machines_of(world, name):
    return {node.machine for node in world.view(name).attempt_list[-1].nodes}


def test_a_plain_job_runs_on_the_gpu_machine_and_cpu_on_the_server(world):
    world.submit("plain")
    world.submit("wide", accels=2, min_nodes=2, max_nodes=2)
    world.submit("small", device="cpu")
    world.scheduler.pass_once()
    assert [machines_of(world, name) for name in ("plain", "wide", "small")] == [{"gpu1"}, {"gpu1"}, {"local"}]


def test_a_job_of_before_without_the_field_gets_the_default(world):
    job_id = world.submit("old")
    spec = {k: v for k, v in world.view("old").spec.model_dump(mode="json").items() if k != "device"}
    world.ctx.db.write(lambda session: session.execute(update(Job).where(Job.id == job_id).values(spec=spec)))
    world.scheduler.pass_once()
    assert machines_of(world, "old") == {"gpu1"} and world.view("old").spec.device == "auto"


def test_a_gang_that_only_both_kinds_together_could_hold_is_refused(world):
    with pytest.raises(CanNeverRun) as refused:
        world.submit("mixed", min_nodes=3, max_nodes=3, accels=4)
    assert refused.value.message == (
        "3 node(s) × 4 slot(s) can never run here: the pool has 2 machines with 12 slots: local (cpu, 4 slots), "
        "gpu1 (cuda, 8 slots). All slots of a job are of one kind. The largest that could: --nodes 2 --accels 4."
    )


def test_a_kind_the_pool_does_not_have_is_refused_with_what_it_has(world, engine):
    with pytest.raises(CanNeverRun, match=r"^No machine with rocm slots; the pool has: local \(cpu, 4 slots\), gpu1"):
        world.submit("amd", device="rocm")
    engine.machines = engine.machines[:1]
    with pytest.raises(CanNeverRun, match=r"^No machine with cuda slots; the pool has: local \(cpu, 4 slots\)\.\n"):
        world.submit("gpu", device="cuda")
    engine.machines = [Machine(name="local", kind="cpu", slots=0)]
    with pytest.raises(CanNeverRun, match="No job can run here: the pool has no slots"):
        world.submit("nothing")


def test_why_speaks_of_the_kind_and_a_change_of_device_starts_the_job(world):
    world.submit("first", accels=8, priority=100)
    world.scheduler.pass_once()
    world.submit("waits")
    world.scheduler.pass_once()
    told = queue.why(world.ctx, world.anna.access(), "waits")
    assert told.text == "next in line; needs 1 cuda slot, 0 free now"
    assert told.evidence[0] == "it needs 1 cuda slot; 0 of 8 are free, at most 0 on one machine"
    assert told.suggestion.command.startswith("shoal training change waits --device any")
    wish = queue.simulate(world.ctx, world.anna.access(), JobWish(device="any", accels=4))
    assert wish.starts_now
    queue.change(world.ctx, world.anna.access(), "waits", JobChange(device="any"))
    world.scheduler.pass_once()
    assert machines_of(world, "waits") == {"local"}


def test_a_preflight_is_tried_on_the_kind_its_job_will_run_on(world, engine):
    engine.machines = [Machine(name="local", kind="cpu", slots=4), Machine(name="gpu1", kind="cuda", slots=1)]
    world.submit("made")
    spec = world.view("made").spec.model_copy(update={"name": "wide", "accels": 4})
    made = preflights.start(world.ctx, world.anna.access(), spec)
    assert jobs.get(world.ctx, world.anna.access(), made.id).spec.device == "cpu"


def test_the_servers_own_machine_is_drained_and_stays_so_over_a_restart(world, engine):
    engine.machines = engine.machines[:1]
    drained = pool.drain(world.ctx, "local", draining=True)
    assert (drained.name, drained.via, drained.state, drained.slots_free) == ("local", "server", "draining", 0)
    world.submit("waits")
    world.scheduler.pass_once()
    assert world.view("waits").waiting == "needs 1 slot: more than all machines that are up now (local is draining)"
    world.ctx.engine.drain("local", draining=False)
    pool_own.restore_drained(world.ctx)
    assert [m.state for m in world.ctx.engine.capacity()] == ["draining"]
    assert pool.drain(world.ctx, "local", draining=False).state == "up"
    pool_own.restore_drained(world.ctx)
    world.scheduler.pass_once()
    assert machines_of(world, "waits") == {"local"}


def test_the_servers_own_machine_cannot_be_removed(world):
    with pytest.raises(Refused) as refused:
        pool.remove(world.ctx, "local", force=True)
    assert "shoal pool drain local" in (refused.value.hint or "")
