"""Launch files depend on the machine: its paths, interpreter, devices, and its address of the server."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.agent.devices.device import Device
from shoal.core.errors import InvalidSpec
from shoal.core.jobs import JobSpec
from shoal.engines.base import Gang, Machine
from shoal.server.jobs import service as jobs
from shoal.server.scheduler.loop import Scheduler
from shoal.testing.server import IdleEngine, add_person, add_source, make_context

HERE = Machine(name="local", kind="cpu", slots=1)
THERE = Machine(
    name="far",
    kind="cuda",
    slots=2,
    home="/srv/shoal",
    python="/opt/py/bin/python",
    url="http://10.0.0.1:7000",
    cores=64,
    devices=(1, 3),
)


class TwoPlaces(IdleEngine):
    def __init__(self, *machines: Machine):
        super().__init__()
        self.machines, self.started = list(machines), list[Gang]()

    def capacity(self) -> list[Machine]:
        return self.machines

    def start(self, gang: Gang) -> None:
        self.started.append(gang)


@pytest.fixture
def launches(tmp_path):
    """Submit a job for these machines, and see what its agents would be told."""
    contexts = []

    def submit(*machines, **wishes):
        engine = TwoPlaces(*machines)
        ctx = make_context(tmp_path / "home", engine=engine)
        contexts.append(ctx)
        person = add_person(ctx, "a@b.c")
        spec = JobSpec(name="j", entry=["train.py"], source_id=add_source(ctx, person), **wishes)
        jobs.submit(ctx, person.access(), spec)
        Scheduler(ctx, "http://127.0.0.1:5000").pass_once()
        return [node for gang in engine.started for node in gang.nodes]

    yield submit
    for ctx in contexts:
        ctx.db.close()


def test_an_agent_here_uses_the_servers_own_directories_and_interpreter(launches, tmp_path):
    [launch] = launches(HERE)
    assert launch.url == "http://127.0.0.1:5000"
    assert Path(launch.work_dir).parent == tmp_path / "home" / "nodes"
    assert launch.server_file and launch.store_path
    assert (launch.python, launch.slots, launch.address) == (sys.executable, [0], None)


def test_an_agent_elsewhere_gets_that_machines_paths_and_devices_and_nothing_of_this_machine(launches):
    [launch] = launches(THERE, accels=2)
    assert launch.url == "http://10.0.0.1:7000"
    assert launch.work_dir == f"/srv/shoal/nodes/{launch.attempt_id}.0"
    assert launch.cache_dir == "/srv/shoal/cache"
    assert (launch.server_file, launch.store_path, launch.address) == (None, None, None)
    assert (launch.python, launch.slots, launch.slot_kind) == ("/opt/py/bin/python", [1, 3], "cuda")
    assert launch.cpu_threads == 8


def test_in_a_gang_of_both_the_nodes_here_are_reached_where_the_others_reach_the_server(launches):
    here = replace(HERE, kind="cuda")
    by_machine = {launch.machine: launch for launch in launches(here, THERE, min_nodes=3, max_nodes=3)}
    assert by_machine["local"].address == "10.0.0.1"
    assert by_machine["local"].url == "http://127.0.0.1:5000"
    assert by_machine["far"].address is None


@pytest.mark.parametrize("state", ["draining", "lost"])
def test_machines_that_are_not_up_get_no_new_nodes(launches, state):
    machine = Machine(name="far", kind="cpu", slots=4, home="/srv/shoal", url=THERE.url, state=state)
    assert [launch.machine for launch in launches(HERE, machine)] == ["local"]


def test_an_agent_is_told_the_uuids_and_files_of_its_devices(launches):
    slices = [Device(kind="cuda", index=0, uuid=f"MIG-{p}", minor=5, parent="GPU-0", part=p) for p in range(2)]
    whole = Device(kind="cuda", index=1, uuid="GPU-1", minor=7)
    box = Machine(name="box", kind="cuda", slots=3, inventory=(*slices, whole))
    [launch] = launches(replace(box, inventory=(replace(slices[0], problem="lost"), slices[1], whole)), accels=2)
    assert (launch.devices, launch.slots) == (["MIG-1", "GPU-1"], [0, 1])
    common = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    assert launch.device_files == [*common, "/dev/nvidia5", "/dev/nvidia-caps", "/dev/nvidia7"]


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"])
def test_a_job_cannot_choose_its_devices_by_a_variable(launches, name):
    with pytest.raises(InvalidSpec, match=f"{name} is set by Shoal"):
        launches(HERE, env={name: "0,1,2,3,4,5,6,7"})
