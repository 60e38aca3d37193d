"""Accelerators and free disk space of the pool's machines, read again and again by the machines themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from shoal.agent.devices.device import Device, Inventory
from shoal.engines.base import Machine
from shoal.engines.device_slots import GONE
from shoal.engines.ray.actor import MachineActor
from shoal.engines.ray.engine import RayEngine, with_devices
from shoal.engines.ray.state import ClusterState

GPUS = tuple(Device(kind="cuda", index=i, uuid=f"GPU-{i}", model="Tesla T4") for i in range(4))


def test_an_actor_tells_its_devices_and_every_change_and_what_disappears_stays_with_the_reason() -> None:
    readings = [Inventory(GPUS[:2]), Inventory(GPUS[:2]), Inventory((GPUS[0], replace(GPUS[1], problem="GPU is lost"))),
                Inventory(GPUS[:1])]  # fmt: skip

    def take(timeout_s: float) -> Inventory:
        return readings.pop(0) if len(readings) > 1 else readings[0]

    actor = MachineActor(take, every_s=0.005)
    told, version = [], 0
    while len(told) < 3:
        news = actor.news(version)
        version = news["version"]
        told.append([device.get("problem") for device in news["devices"]])
        assert news["inventory"]["devices"] == news["devices"]
    actor.close()
    assert told == [[None, None], [None, "GPU is lost"], [None, GONE]]


def test_a_machine_without_accelerators_is_not_asked_and_tells_none() -> None:
    news = MachineActor().news(-1)
    assert news["devices"] is None and news["version"] == 0


def test_only_a_change_of_devices_is_a_change_of_the_state() -> None:
    state = ClusterState()
    state.set_devices("gpu1", [GPUS[0].to_json()])
    known = state.wait(-1, 0)
    assert known["devices"] == {"gpu1": [GPUS[0].to_json()]}
    state.set_devices("gpu1", [GPUS[0].to_json()])
    assert state.version == known["version"]


def test_slots_keep_their_devices_and_get_what_was_read_last() -> None:
    offered = Machine(name="gpu1", kind="cuda", slots=3, devices=(0, 2, 3), inventory=(GPUS[0], GPUS[2], GPUS[3]))
    read = [
        device.to_json() for device in (replace(GPUS[0], island=1), GPUS[1], replace(GPUS[2], problem="2 ECC errors"))
    ]
    found = with_devices(offered, read).inventory
    assert [(d.uuid, d.island, d.problem) for d in found] == [
        ("GPU-0", 1, ""), ("GPU-2", None, "2 ECC errors"), ("GPU-3", None, GONE),
    ]  # fmt: skip
    assert with_devices(offered, None) is offered


def test_slices_and_masked_gpus_are_told_apart_and_a_lost_gpu_comes_back_to_its_slot() -> None:
    slices = [Device(kind="cuda", index=0, uuid=f"MIG-{n}", part=n, parent="GPU-0") for n in range(3)]
    lost = Device(kind="cuda", index=1, problem="GPU is lost")
    machine = Machine(name="gpu1", kind="cuda", slots=4, inventory=(*slices, lost), problems=["GPU 1: GPU is lost"])
    read = Inventory((*slices, lost), ("GPU 1: GPU is lost",)).to_json()
    found = with_devices(machine, read)
    assert found == machine and [d.problem for d in found.inventory] == ["", "", "", "GPU is lost"]
    read = Inventory((*slices[:2], GPUS[1], GPUS[2])).to_json()  # one slice is gone, and a GPU was added
    assert [(d.uuid, d.problem) for d in with_devices(machine, read).inventory] == [
        ("MIG-0", ""), ("MIG-1", ""), ("MIG-2", GONE), ("GPU-1", ""),
    ]  # fmt: skip


def test_a_driver_that_falls_silent_leaves_no_usable_slot_and_says_why() -> None:
    machine = Machine(name="gpu1", kind="cuda", slots=2, inventory=GPUS[:2])
    read = Inventory((), ("the NVIDIA driver does not answer (60 s)",), frozenset({"cuda"})).to_json()
    found = with_devices(machine, read)
    assert {d.problem for d in found.inventory} == {"its driver does not answer"}
    assert found.problems == ["the NVIDIA driver does not answer (60 s)"]


def test_what_an_actor_and_a_driver_of_an_earlier_version_tell_is_read() -> None:
    machine = Machine(name="gpu1", kind="cuda", slots=2, inventory=GPUS[:2])
    assert [d.problem for d in with_devices(machine, [GPUS[0].to_json()]).inventory] == ["", GONE]


def test_a_machine_whose_probe_named_no_devices_gets_those_it_reads_if_they_are_as_many() -> None:
    plain = Machine(name="amd1", kind="cuda", slots=2)
    read = [device.to_json() for device in reversed(GPUS[:2])]
    assert with_devices(plain, read).inventory == GPUS[:2]
    assert with_devices(replace(plain, slots=1), read).inventory == ()


def test_an_actor_reports_a_disk_without_room_until_it_has_room_again() -> None:
    readings: list[int | OSError] = [
        1 << 40,
        1 << 39,
        3 << 20,
        (3 << 20) + 5,
        OSError(5, "Input/output error"),
        1 << 40,
    ]

    def free_bytes() -> int:
        found = readings.pop(0) if len(readings) > 1 else readings[0]
        if isinstance(found, OSError):
            raise found
        return found

    actor = MachineActor(free_bytes=free_bytes, disk_every_s=0.02)
    told, version = [], 0
    while len(told) < 3:
        news = actor.news(version)
        version = news["version"]
        told.append(news["full"])
    actor.close()
    assert told == ["out of disk space (3 MiB free)", "unable to read its disk (Input/output error)", ""]


def test_a_full_machine_of_the_pool_refuses_new_nodes(tmp_path: Path) -> None:
    state = ClusterState()
    state.set_machines(["a", "b"])
    state.set_full("a", "")
    before = state.version
    state.set_full("b", "out of disk space (3 MiB free)")
    state.set_full("b", "out of disk space (3 MiB free)")
    assert state.version == before + 1
    head = SimpleNamespace(folder=tmp_path, driver_token=lambda: "t", driver=lambda: ("http://127.0.0.1:9", ""),
                           revive_driver=lambda: None)  # fmt: skip
    engine = RayEngine(head, lambda: [Machine(name=name, kind="cpu", slots=1) for name in "ab"])  # type: ignore[arg-type]
    engine._seen = state.wait(-1, 0) | {"instance": ""}
    assert [(m.name, m.refuses, m.problems) for m in engine.capacity()] == [
        ("a", "", []), ("b", "out of disk space (3 MiB free)", ["out of disk space (3 MiB free)"]),
    ]  # fmt: skip
    state.set_full("b", "")
    engine._seen = state.wait(-1, 0) | {"instance": ""}
    assert [m.refuses for m in engine.capacity()] == ["", ""]
    engine.close()
