"""Kinds of slots on a server: where jobs land, what is refused with which words, and the server's own machine drained."""

from dataclasses import replace

import pytest
from queueworld import World
from sqlalchemy import select, update

from shoal.agent.devices.device import Device
from shoal.core.errors import CanNeverRun, NotFound, Refused
from shoal.core.queue import JobChange, StartEstimateRequest
from shoal.core.states import NodeState
from shoal.engines.base import AgentState, Machine
from shoal.server.jobs import service as jobs
from shoal.server.models.jobs import Event, Job
from shoal.server.pool import device_drains, device_history, machines, own_machine
from shoal.server.pool import service as pool
from shoal.server.pool.device_gauges import DeviceGauges
from shoal.server.preflight import service as preflights
from shoal.server.queue import service as queue
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


def test_several_workers_on_mig_slices_are_refused_with_the_reason_and_one_runs(world, engine):
    piece = replace(GPUS[0], model="NVIDIA A100-SXM4-80GB MIG 1g.10gb", parent="GPU-0")
    slices = tuple(replace(piece, uuid=f"MIG-{n}", part=n) for n in range(7))
    engine.machines = [Machine(name="gpu1", kind="cuda", slots=7, inventory=slices)]
    with pytest.raises(CanNeverRun) as refused:
        world.submit("wide", gpu="A100 1g.10gb", accels=4)
    assert refused.value.message == (
        "Only MIG slices match A100 1g.10gb GPUs, and they work alone: a process sees one of them, and NCCL connects none."
    )
    with pytest.raises(CanNeverRun, match="No machine with A100 GPUs; the pool has: gpu1"):
        world.submit("whole", gpu="A100")
    world.submit("alone", gpu="A100 1g.10gb")
    made = preflights.start(world.ctx, world.anna.access(), world.view("alone").spec)
    assert jobs.get(world.ctx, world.anna.access(), made.id).spec.gpu == "A100 1g.10gb"
    world.scheduler.pass_once()
    assert machines_of(world, "alone") == {"gpu1"}


def test_a_preflight_runs_on_the_model_of_its_job_not_on_a_slice(world, engine):
    whole = tuple(replace(GPUS[0], index=n, uuid=f"GPU-{n}", model="NVIDIA H100 80GB HBM3") for n in range(2))
    piece = replace(GPUS[0], index=2, uuid="MIG-1", part=0, parent="GPU-2", model="NVIDIA H100 80GB HBM3 MIG 1g.10gb")
    engine.machines = [Machine(name="gpu1", kind="cuda", slots=3, inventory=(*whole, piece))]
    world.submit("made")
    spec = world.view("made").spec.model_copy(update={"name": "wide", "accels": 2})
    made = preflights.start(world.ctx, world.anna.access(), spec)
    assert jobs.get(world.ctx, world.anna.access(), made.id).spec.gpu == "H100 80GB HBM3"


def test_a_gang_that_may_mix_models_is_accepted_started_and_offered_where_it_would_help(world, engine):
    h100s = tuple(Device(kind="cuda", index=n, uuid=f"H-{n}", model="NVIDIA H100 80GB HBM3") for n in range(4))
    t4s = tuple(Device(kind="cuda", index=n, uuid=f"T-{n}", model="Tesla T4") for n in range(4))
    engine.machines = [
        Machine(name="gpu1", kind="cuda", slots=4, inventory=h100s),
        Machine(name="gpu2", kind="cuda", slots=4, inventory=t4s),
    ]
    with pytest.raises(CanNeverRun) as refused:
        world.submit("same", min_nodes=2, max_nodes=2, accels=4)
    assert refused.value.hint == "--mixed-models allows nodes with different models of GPUs."
    world.submit("mixed", min_nodes=2, max_nodes=2, accels=4, mixed_models=True)
    world.scheduler.pass_once()
    assert machines_of(world, "mixed") == {"gpu1", "gpu2"}
    with pytest.raises(CanNeverRun) as refused:
        world.submit("large", accels=9)
    assert refused.value.hint == "shoal machine list", "no setting makes more GPUs"
    world.submit("next", min_nodes=2, max_nodes=2, accels=2)
    assert queue.change(world.ctx, world.anna.access(), "next", JobChange(mixed_models=True)).spec.mixed_models


def test_any_gpu_is_asked_for_by_one_word_and_is_never_a_cpu(world, engine):
    world.submit("gpu", device="gpu")
    world.scheduler.pass_once()
    assert machines_of(world, "gpu") == {"gpu1"}
    engine.machines = engine.machines[:1]
    with pytest.raises(CanNeverRun, match=r"^No machine with accelerators; the pool has: local \(cpu, 4 slots\)\.\n"):
        world.submit("none", device="gpu")


def test_why_speaks_of_the_kind_and_a_change_of_device_starts_the_job(world):
    world.submit("first", accels=8, priority=100)
    world.scheduler.pass_once()
    world.submit("waits")
    world.scheduler.pass_once()
    told = queue.why(world.ctx, world.anna.access(), "waits")
    assert told.text == "next in line; needs 1 cuda slot, 0 free now"
    assert told.evidence[0] == "it needs 1 cuda slot; 0 of 8 are free, at most 0 on one machine"
    assert told.suggestion.command.startswith("shoal training change waits --device any")
    wish = queue.simulate(world.ctx, world.anna.access(), StartEstimateRequest(device="any", accels=4))
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
    own_machine.restore_drained(world.ctx)
    assert [m.state for m in world.ctx.engine.capacity()] == ["draining"]
    assert pool.drain(world.ctx, "local", draining=False).state == "up"
    own_machine.restore_drained(world.ctx)
    world.scheduler.pass_once()
    assert machines_of(world, "waits") == {"local"}


def test_the_servers_own_machine_cannot_be_removed(world):
    with pytest.raises(Refused) as refused:
        pool.remove(world.ctx, "local", force=True)
    assert "shoal pool drain local" in (refused.value.hint or "")


def test_a_broken_device_is_given_to_nobody(world, engine):
    broken = [
        Device(kind="cuda", index=i, uuid=f"GPU-{i}", problem="GPU is lost" if i in (0, 2) else "") for i in range(4)
    ]
    engine.machines = [Machine(name="gpu1", kind="cuda", slots=4, inventory=tuple(broken))]
    for name in ("a", "b", "c"):
        world.submit(name)
    world.scheduler.pass_once()
    slots = [node.slots for name in ("a", "b", "c") for a in world.view(name).attempt_list for node in a.nodes]
    assert slots == [[1], [3]]


GPUS = tuple(Device(kind="cuda", index=i, uuid=f"GPU-{i}", model="Tesla T4", memory=16 << 30) for i in range(2))
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


def test_a_device_can_be_drained_and_used_again(world, engine):
    engine.machines = [Machine(name="gpu1", kind="cuda", slots=2, inventory=GPUS)]
    device_drains.change(world.ctx, "gpu1", ["GPU-0"], draining=True)
    for name in ("a", "b"):
        world.submit(name)
    world.scheduler.pass_once()
    assert [a.nodes[0].slots for a in world.view("a").attempt_list] == [[1]]
    assert world.view("b").attempt_list == []
    [machine] = machines.capacity(world.ctx).machines
    assert [(d.is_free, d.problem) for d in machine.devices] == [(False, "drained: by an admin"), (False, "")]
    assert machine.slots_free == 0
    device_drains.change(world.ctx, "gpu1", ["0"], draining=False)
    world.scheduler.pass_once()
    assert [a.nodes[0].slots for a in world.view("b").attempt_list] == [[0]]
    with pytest.raises(NotFound, match="has no device '7'"):
        device_drains.change(world.ctx, "gpu1", ["7"], draining=True)


def test_a_drained_device_stays_drained_when_the_server_starts_again(world, engine):
    engine.machines = [Machine(name="gpu1", kind="cuda", slots=2, inventory=GPUS)]
    device_drains.change(world.ctx, "gpu1", ["GPU-1"], draining=True)
    world.ctx.engine.set_drained_devices({})
    device_drains.restore(world.ctx)
    [machine] = world.ctx.engine.capacity()
    assert [d.problem for d in machine.inventory] == ["", "drained: by an admin"]


def faulty(world, name, reason, rank=0, **wishes):
    """Let a job fail in its first attempt; return the slots of its two attempts."""
    job_id = world.submit(name, **wishes)
    world.tick()
    world.end(job_id, 1, reason=reason, failed_rank=rank)
    world.tick()
    return [attempt.nodes[0].slots for attempt in world.view(name).attempt_list]


@pytest.mark.parametrize(("accels", "rank", "broken"), [(1, 0, 0), (2, 1, 1)])
def test_a_device_with_a_hardware_fault_is_drained_and_the_job_goes_on_elsewhere(world, engine, accels, rank, broken):
    inventory = tuple(replace(GPUS[0], index=i, uuid=f"GPU-{i}") for i in range(4))
    engine.machines = [Machine(name="gpu1", kind="cuda", slots=4, inventory=inventory)]
    slots = faulty(world, "a", ECC, rank, accels=accels)
    assert slots[0] == list(range(accels)) and broken not in slots[1]
    [machine] = world.ctx.engine.capacity()
    assert [d.problem for d in machine.inventory] == [f"drained: {ECC}" if i == broken else "" for i in range(4)]
    with world.ctx.db.read() as session:
        stories = list(session.scalars(select(Event.message).where(Event.kind == "device")))
    assert stories == [f"GPU {broken} of 'gpu1' is drained after a hardware fault; other devices are used"]


def test_a_fault_that_a_script_can_cause_drains_nothing(world, engine):
    engine.machines = [Machine(name="gpu1", kind="cuda", slots=2, inventory=GPUS)]
    faulty(world, "a", "RuntimeError: CUDA error: unspecified launch failure")
    [machine] = world.ctx.engine.capacity()
    assert [d.problem for d in machine.inventory] == ["", ""]


LAUNCH_FAILURE = "RuntimeError: CUDA error: unspecified launch failure"


def test_after_progress_a_job_is_not_restarted_on_the_gpu_that_failed_it(world, engine):
    engine.machines = [Machine(name="gpu1", kind="cuda", slots=2, inventory=GPUS)]
    job_id = world.submit("a")
    world.tick()
    world.beat(job_id, state=NodeState.RUNNING, progress={"step": 100})
    world.end(job_id, 1, reason=LAUNCH_FAILURE, failed_rank=0)
    world.tick()
    assert [attempt.nodes[0].slots for attempt in world.view("a").attempt_list] == [[0], [1]]


def test_a_job_that_every_gpu_failed_waits_and_says_so_and_others_run_there(world, engine):
    engine.machines = [Machine(name="gpu1", kind="cuda", slots=2, inventory=GPUS)]
    faulty(world, "a", LAUNCH_FAILURE)
    world.end(world.view("a").id, 1, reason=LAUNCH_FAILURE, failed_rank=0)
    for _ in range(3):
        world.tick()
    assert [attempt.nodes[0].slots for attempt in world.view("a").attempt_list] == [[0], [1]]
    assert "on devices where it has not failed before (it failed on gpu1: 0, 1)" in world.view("a").waiting
    world.submit("b")
    world.tick()
    assert len(world.view("b").attempt_list) == 1


def test_after_ecc_errors_each_attempt_runs_on_devices_that_never_failed_the_job_and_one_line_tells_it(world, engine):
    inventory = tuple(replace(GPUS[0], index=i, uuid=f"GPU-{i}") for i in range(8))
    engine.machines = [Machine(name="gpu1", kind="cuda", slots=8, inventory=inventory)]
    job_id = world.submit("a", accels=2)
    for step in (100, 200, 300):
        world.tick()
        world.beat(job_id, state=NodeState.RUNNING, progress={"step": step})
        world.end(job_id, 1, reason=ECC, failed_rank=1)
    world.tick()
    slots = [attempt.nodes[0].slots for attempt in world.view("a").attempt_list]
    failed = [one[1] for one in slots[:3]]
    assert len(slots) == 4 and failed[0] == 1 and len(set(failed)) == 3
    assert not any(set(failed[:n]) & set(slots[n]) for n in range(1, 4)), slots
    with world.ctx.db.read() as session:
        stories = list(session.scalars(select(Event.message).where(Event.kind == "device")))
    assert stories == [f"GPU {n} of 'gpu1' is drained after a hardware fault; other devices are used" for n in failed]


def test_agents_report_what_their_gpus_measure_and_gpus_that_are_not_used_become_an_event(world, engine):
    measured = {"GPU-1": {"i": 1, "uuid": "GPU-1", "util": 3.0, "celsius": 40.0}}
    engine.machines = [Machine(name="gpu1", kind="cuda", slots=2, inventory=GPUS, gauges=measured)]
    job_id = world.submit("a")
    world.tick()
    gauge = {"i": 0, "uuid": "GPU-0", "util": 97.0, "mem": 1e9, "watts": 300.0, "throttled": 1.0, "ecc": 0.0}
    notices = ["GPU 0 has not been used for 15 minutes"]
    for _ in range(2):
        world.beat(job_id, state=NodeState.RUNNING, gpus=[gauge], notices=notices)
    first, second = machines.capacity(world.ctx).machines[0].devices
    assert (first.util, first.memory_used, first.watts, first.throttled) == (97, 1e9, 300, True)
    assert (second.util, second.celsius, second.throttled) == (3, 40, None)
    world.ctx.gauges = DeviceGauges()  # as after a restart of the server
    world.beat(job_id, state=NodeState.RUNNING, notices=[*notices, "more"])
    with world.ctx.db.read() as session:
        stories = list(session.scalars(select(Event.message).where(Event.kind == "gpu_use")))
    assert stories == [*notices, "more"]
    assert machines.capacity(world.ctx).machines[0].devices[0].util is None, "old values are not shown"


def test_the_database_keeps_the_devices_and_what_changed_over_restarts_of_the_server(world, engine):
    def update():
        engine.machines = [Machine(name="gpu1", kind="cuda", slots=len(found), inventory=tuple(found))]
        device_history.DeviceHistory(world.ctx).update()  # as by a server that was just started

    found = list(GPUS)
    update()
    update()
    device_drains.change(world.ctx, "gpu1", ["GPU-1"], draining=True)
    update()
    found.pop(0)
    update()
    known = [(r.uuid, r.problem, r.until is None) for r in reversed(device_history.records(world.ctx, "gpu1"))]
    assert known == [("GPU-0", "", False), ("GPU-1", "", False), ("GPU-1", "drained: by an admin", True)]
    assert device_history.records(world.ctx, "other") == []
    kept = device_history.DeviceHistory(world.ctx)
    kept.update()
    writes = []
    world.ctx.db.write, write = writes.append, world.ctx.db.write
    kept.update()
    world.ctx.db.write = write
    assert writes == [], "nothing is written while nothing changes"


def test_an_agent_learns_the_numa_nodes_of_its_gpus(world, engine):
    started = []
    engine.start = started.append
    inventory = tuple(replace(GPUS[0], index=i, uuid=f"GPU-{i}", numa=i // 2) for i in range(4))
    engine.machines = [Machine(name="gpu1", kind="cuda", slots=4, inventory=inventory)]
    world.submit("a", accels=3)
    world.submit("b")
    world.scheduler.pass_once()
    assert [(node.slots, node.numa) for gang in started for node in gang.nodes] == [([0, 1, 2], [0, 0, 1]), ([3], [1])]
    engine.machines = [Machine(name="gpu2", kind="cuda", slots=2, inventory=GPUS)]
    world.submit("c")
    world.scheduler.pass_once()
    assert started[-1].nodes[0].numa == []


def test_a_quota_for_a_model_is_set_shown_kept_and_obeyed(world, engine):
    h100 = tuple(replace(GPUS[0], index=i, uuid=f"GPU-{i}", model="NVIDIA H100 80GB HBM3") for i in range(4))
    engine.machines = [Machine(name="gpu1", kind="cuda", slots=4, inventory=h100)]

    def change(**body):
        return world.as_anna.request("PATCH", f"/admin/quotas/{world.anna.workspace_id}", json=body)

    assert change(models={"H100": 2, "A100": 8}).json()["models"] == {"A100": 8, "H100": 2}
    assert change(models={"A100": None}, weight=2.0).json()["models"] == {"H100": 2}
    assert change(models={"H100": -1}).status_code == 422 and change(models={"no;": 1}).status_code == 422
    for name in ("a", "b", "c"):
        world.submit(name)
    world.scheduler.pass_once()
    assert [len(world.view(name).attempt_list) for name in ("a", "b", "c")] == [1, 1, 0]
    assert world.view("c").waiting == "its workspace may hold 2 H100 at once, and holds 2 now"
    with pytest.raises(CanNeverRun, match="its jobs may hold 2 H100 at once"):
        world.submit("wide", gpu="H100", accels=3)
    change(models={"H100": None})
    world.scheduler.pass_once()
    assert len(world.view("c").attempt_list) == 1
