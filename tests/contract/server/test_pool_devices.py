"""Accelerators of the pool's machines: what a joining machine's inventory decides, and what a later check changes."""

from dataclasses import replace

import pytest

from shoal.agent.devices.device import Device, Inventory
from shoal.core.pool import PoolAdd, Problem
from shoal.server.models.pool import PoolRow
from shoal.server.pool import pool_rows, recheck
from shoal.server.pool.ssh import Ssh

GPUS = [Device(kind="cuda", index=n, uuid=f"GPU-0000000{n}", model="Tesla T4") for n in range(3)]
SLICES = [Device(kind="cuda", index=0, uuid=f"MIG-7{n}aa", part=n, parent="GPU-00000000") for n in range(7)]


class Machine:
    """A machine behind SSH: answers what a check asks, and records the starts of its daemon."""

    def __init__(self, *devices, **more):
        self.found, self.starts = Inventory(devices, **more), []

    def do(self, task):
        if task["do"] == "start":
            self.starts.append(task["argv"])
        return {"probe": {"cores": 8}, "read_devices": self.found.to_json(), "start": {"note": ""},
                "try_devices": {"devices": [], "all_reduce": None}}[task["do"]]  # fmt: skip


@pytest.fixture
def check(ctx, monkeypatch):
    """Add a row for a machine with these devices; return a function that checks it and returns its row then."""

    def make(machine, devices, kind="cuda", gpus=None):
        machine_id = pool_rows.make(ctx, "gpu1", PoolAdd(host="10.0.0.5", gpus=gpus), via="ssh")
        pool_rows.change(ctx, machine_id, state="up", kind=kind, slots=len(devices) or 4, gpus=gpus, url="https://s",
                         devices=[d.to_json() for d in devices], python="/p", home="/h", address="10.0.0.5",
                         facts={"cores": 8})  # fmt: skip
        monkeypatch.setattr(Ssh, "do", lambda ssh, task, **more: machine.do(task))
        monkeypatch.setattr(recheck, "examine", lambda ctx, ssh, asked, url: ({"cores": 8}, []))
        monkeypatch.setattr(
            ctx.pool, "daemon_instructions", lambda name, *, slots, **_: {"argv": [name, slots], "home": "/h"}
        )

        def run():
            with ctx.db.read() as session:
                recheck.recheck(ctx, session.get_one(PoolRow, machine_id))
            with ctx.db.read() as session:
                row = session.get_one(PoolRow, machine_id)
                return row.state, [d["uuid"] for d in row.devices], [Problem(**p).text for p in row.problems]

        return run

    return make


def test_a_gpu_that_was_cut_into_slices_leaves_and_its_slices_join_when_no_job_runs_there(ctx, check):
    machine = Machine(*SLICES, *GPUS[1:])
    state, devices, problems = check(machine, GPUS)()
    assert state == "up" and devices == [d.uuid for d in (*SLICES, *GPUS[1:])] and problems == []
    assert machine.starts == [["gpu1", 9]]
    [member] = pool_rows.members(ctx)
    assert (member.slots, member.inventory) == (9, (*SLICES, *GPUS[1:]))


def test_slots_of_a_machine_in_use_keep_their_numbers_and_the_check_says_what_waits(check, monkeypatch):
    monkeypatch.setattr(recheck, "_is_used", lambda ctx, name: True)
    machine = Machine(*GPUS)
    _, devices, problems = check(machine, GPUS[:2])()
    assert (devices, machine.starts) == ([d.uuid for d in GPUS[:2]], [])
    assert problems == ["1 of its devices are not in the pool yet"]


def test_a_check_that_finds_the_same_devices_or_a_silent_driver_changes_no_slots(check):
    machine = Machine(*GPUS)
    run = check(machine, GPUS)
    machine.found = Inventory((GPUS[2], GPUS[0], replace(GPUS[1], problem="GPU is lost")))
    assert run()[1] == [d.uuid for d in GPUS]
    machine.found = Inventory((), ("the NVIDIA driver does not answer (30 s)",), frozenset({"cuda"}))
    _, devices, problems = run()
    assert devices == [d.uuid for d in GPUS] and problems == ["the NVIDIA driver does not answer (30 s)"]
    assert machine.starts == []


def test_a_cpu_machine_that_has_gpus_now_is_named_unless_only_its_cpu_is_wanted(check):
    assert check(Machine(*GPUS), [], kind="cpu")()[2] == ["it has 3 cuda devices now, and joined as a machine without"]
    assert check(Machine(*GPUS), [], kind="cpu", gpus=[])()[2] == []


def test_a_machine_without_gpus_for_the_pool_hides_them_from_its_jobs(ctx, monkeypatch):
    class Cluster:
        def join(self, *_, **__):
            return type("Join", (), {"argv": ["python"], "token": "t"})

    monkeypatch.setattr(ctx.pool, "_cluster", Cluster())
    of = {"name": "a", "slots": 1, "python": "p", "home": "/h", "address": "10.0.0.5"}
    hidden = ["env", "CUDA_VISIBLE_DEVICES=", "ROCR_VISIBLE_DEVICES=", "HIP_VISIBLE_DEVICES=", "python"]
    assert ctx.pool.daemon_instructions(**of, gpus=[])["argv"] == hidden
    assert ctx.pool.daemon_instructions(**of, gpus=[1])["argv"] == ["python"]
