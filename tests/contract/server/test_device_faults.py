"""GPUs that fail under running jobs, as their drivers tell: drained, their jobs continued elsewhere, and one line that says so."""

from dataclasses import replace

import pytest
from queueworld import World
from sqlalchemy import select

from shoal.agent.devices.device import Device
from shoal.core.agents import JoinRequest
from shoal.core.leases import LeaseRequest
from shoal.core.states import NodeState
from shoal.engines.base import AgentState, Machine
from shoal.server.jobs import agents
from shoal.server.leases import service as leases
from shoal.server.models.jobs import Event
from shoal.server.policy import AgentIdentity
from shoal.testing.server import IdleEngine

GPUS = tuple(Device(kind="cuda", index=i, uuid=f"GPU-{i}", model="Tesla T4", memory=16 << 30) for i in range(4))


class Box(IdleEngine):
    """A machine with four GPUs."""

    def __init__(self):
        super().__init__()
        self.inventory = GPUS

    def capacity(self):
        return [Machine(name="gpu1", kind="cuda", slots=4, inventory=self.inventory)]

    def status(self, attempt_id, node):
        return AgentState.ALIVE

    def breaks(self, index, problem, *, is_faulty=True):
        self.inventory = tuple(
            replace(d, problem=problem, is_faulty=is_faulty) if d.index == index else d for d in self.inventory
        )


@pytest.fixture
def box():
    return Box()


@pytest.fixture
def world(tmp_path, box):
    world = World(tmp_path, box)
    yield world
    world.ctx.db.close()


def slots_of(world, job_id):
    return [[node.slots for node in attempt.nodes] for attempt in world.view(job_id).attempt_list]


def told(world):
    with world.ctx.db.read() as session:
        return list(session.scalars(select(Event.message).where(Event.kind == "device")))


def killed(world, job_id, nodes=1):
    """Let the agents of a fenced attempt kill their workers and end."""
    for node in range(nodes):
        assert world.beat(job_id, node, state=NodeState.RUNNING).fenced
        world.beat(job_id, node, state=NodeState.EXITED, exit_code=-9, told=True, reason="fenced")


ECC = "2 uncorrectable ECC errors since the last reset"
LINE = "GPU {} of 'gpu1' is drained after a hardware fault; other devices are used"


@pytest.mark.parametrize(
    ("see", "reason"),
    [
        (lambda box, world, job: box.breaks(1, ECC), f"GPU 1: {ECC}"),
        (lambda box, world, job: box.breaks(1, "GPU is lost"), "GPU 1: GPU is lost"),
        (lambda box, world, job: world.beat(job, state="running", gpus=[{"i": 1, "uuid": "GPU-1", "ecc": 2}]), f"GPU 1: {ECC}"),
        (lambda box, world, job: world.beat(job, state="running", gpus=[{"i": 1, "uuid": "GPU-1", "xid": 79}]),
         "GPU 1: Xid 79: the GPU has fallen off the bus"),
    ],
    ids=["ecc", "lost", "ecc told by the agent", "xid told by the agent"],
)  # fmt: skip
def test_a_gpu_that_breaks_under_a_job_is_drained_and_the_job_continues_on_others(world, box, see, reason):
    job = world.submit("a", accels=2)
    world.tick()
    see(box, world, job)
    for _ in range(3):
        world.tick()
    killed(world, job)
    world.tick()
    assert slots_of(world, job) == [[[0, 1]], [[2, 3]]] and told(world) == [LINE.format(1)]
    attempt = world.view(job).attempt_list[0]
    assert attempt.reason == f"rank 1 on node 0: {reason}" and attempt.nodes[0].reason == reason
    [machine] = world.ctx.engine.capacity()
    assert machine.inventory[1].problem in (f"drained: {reason}", reason.partition(": ")[2])
    box.inventory = GPUS  # repaired, but an admin must look first
    assert world.ctx.engine.capacity()[0].inventory[1].problem == f"drained: {reason}"


def test_a_gang_is_ended_as_a_whole_by_the_fault_of_one_gpu(world, box):
    job = world.submit("gang", min_nodes=2, max_nodes=2, accels=1, max_restarts=1)
    world.tick()
    box.breaks(1, ECC)
    world.tick()
    killed(world, job, nodes=2)
    world.tick()
    assert slots_of(world, job) == [[[0], [1]], [[0], [2]]]
    assert world.view(job).attempt_list[0].reason == f"rank 1 on node 1: GPU 1: {ECC}"


@pytest.mark.parametrize("xid", [13, 31, 45])
def test_reports_that_a_program_can_cause_end_and_drain_nothing(world, xid):
    job = world.submit("a")
    world.tick()
    world.beat(job, state=NodeState.RUNNING, gpus=[{"i": 0, "uuid": "GPU-0", "xid": xid}])
    world.tick()
    assert not world.beat(job, state=NodeState.RUNNING).fenced and told(world) == []


def test_a_contained_error_drains_the_gpu_and_lets_its_job_finish(world):
    job = world.submit("a")
    world.tick()
    world.beat(job, state=NodeState.RUNNING, gpus=[{"i": 0, "uuid": "GPU-0", "xid": 94}])
    world.tick()
    world.tick()
    assert not world.beat(job, state=NodeState.RUNNING).fenced
    assert told(world) == ["GPU 0 of 'gpu1' is drained after a hardware fault; it takes no new jobs"]
    world.end(job)
    assert world.view(job).status == "succeeded"
    other = world.submit("b")
    world.tick()
    assert slots_of(world, other) == [[[1]]]


@pytest.mark.parametrize("problem", ["its driver does not answer", "broken memory is replaced at its next reset"])
def test_a_problem_that_does_not_affect_a_running_job_only_keeps_new_ones_away(world, box, problem):
    job = world.submit("a")
    world.tick()
    box.breaks(0, problem, is_faulty=False)
    world.tick()
    assert not world.beat(job, state=NodeState.RUNNING).fenced and told(world) == []
    other = world.submit("b")
    world.tick()
    assert slots_of(world, other) == [[[1]]]


def test_a_job_that_is_done_when_its_gpu_breaks_has_succeeded(world, box):
    job = world.submit("a")
    world.tick()
    box.breaks(0, ECC)
    world.tick()
    world.end(job)
    assert world.view(job).status == "succeeded"


def test_a_rented_machine_is_not_taken_from_its_person(world, box):
    lease = leases.rent(world.ctx, world.anna.access(), LeaseRequest(name="box", ssh_keys=["ssh-ed25519 " + KEY]))
    world.tick()
    box.breaks(0, ECC)
    world.tick()
    world.tick()
    assert not world.beat(world.view(lease.job).id, state=NodeState.RUNNING).fenced
    assert told(world) == ["GPU 0 of 'gpu1' is drained after a hardware fault; end it to get another device"]


USED = "GPU 0: 12.0 GiB of its memory are in use before the job starts by process 4711 (python)"


def test_a_gpu_whose_memory_stays_in_use_is_drained_and_the_job_starts_elsewhere_without_losing_a_restart(world):
    job = world.submit("a", accels=2, max_restarts=0)
    world.scheduler.pass_once()
    who = AgentIdentity(job, world.attempt(job).id, 1, 0)
    agents.join(world.ctx, who, JoinRequest(pid=1, boot_id="b", host="h", address="127.0.0.1", port=20000))
    world.beat_as(who, state=NodeState.EXITED, exit_code=1, failed_rank=0, reason=USED)
    world.tick()
    first, second = world.view(job).attempt_list
    assert (first.nodes[0].slots, second.nodes[0].slots) == ([0, 1], [2, 3]) and first.started_at is None
    assert told(world) == [LINE.format(0)]
    assert [d.problem for d in world.ctx.engine.capacity()[0].inventory] == [f"drained: {USED}", "", "", ""]


def test_the_server_says_how_long_nodes_wait_for_their_gpus_and_not_on_a_private_one(world):
    job = world.submit("a")
    world.scheduler.pass_once()
    who = AgentIdentity(job, world.attempt(job).id, 1, 0)
    request = JoinRequest(pid=1, boot_id="b", host="h", address="127.0.0.1", port=20000)
    assert agents.join(world.ctx, who, request).device_wait_s == 60.0
    world.ctx.private = True
    assert agents.join(world.ctx, who, request).device_wait_s == 0.0


def test_gpus_held_by_processes_that_cannot_be_killed_are_drained_before_their_slots_are_free(world):
    job, other = world.submit("a", accels=2), world.submit("b", accels=4)
    world.tick()
    attempt = world.attempt(job)
    who = AgentIdentity(job, attempt.id, 1, 0)
    report = {"state": NodeState.EXITED, "exit_code": -9, "reason": "killed by SIGKILL", "unkillable": [4711, 4712]}
    for _ in range(2):  # until it is delivered, an agent repeats its report
        world.beat_as(who, **report)
    assert told(world) == ["GPU 0, GPU 1 of 'gpu1' are drained: processes 4711, 4712 of this job cannot be killed"]
    drained = f"drained: processes 4711, 4712 of job {job} cannot be killed; reboot the machine if they stay"
    assert [d.problem for d in world.ctx.engine.capacity()[0].inventory] == [drained, drained, "", ""]
    world.tick()
    assert slots_of(world, job) == [[[0, 1]], [[2, 3]]]
    assert slots_of(world, other) == [] and "missing 2 devices" in world.view(other).waiting


def test_a_cpu_machine_with_a_process_that_cannot_be_killed_is_used_last(world, box, monkeypatch):
    monkeypatch.setattr(box, "capacity", lambda: [Machine(name=name, kind="cpu", slots=1) for name in ("x", "y")])
    job = world.submit("a")
    world.tick()
    world.end(job, code=-9, reason="killed by SIGKILL", unkillable=[4711])
    assert told(world) == ["'x' is used last for a while: process 4711 of this job cannot be killed"]
    assert world.ctx.queue.shunned == ["x"]


KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIGJcbkw3VRfU7vYy9TtDJGqJf0bXcS4Kq7aOZd1d7cJX"
