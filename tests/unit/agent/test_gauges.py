"""Measured values of GPUs: one reader per machine, what it reads by each way, and what jobs are told about GPUs they hardly use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from shoal.agent.devices import gauges, inventory
from shoal.agent.devices.driver_events import NoXids, open_xids, parse_kernel_log
from shoal.agent.devices.idle import IDLE_S, LOW_S, UseWatch
from shoal.agent.devices.readings import EVERY_S, Readings, gauges_file
from shoal.testing.engines import eventually
from shoal.testing.fake_devices import GIB, Box, build_nvml, gpu

BUSY = {"util": 98, "used": 60 * GIB, "milliwatts": 650_000, "limit": 700_000, "celsius": 71, "mhz": 1755, "max_mhz": 1980,
        "throttle": 0x44, "links": 18, "link_errors": 3}  # fmt: skip


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    return build_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def box(tmp_path):
    return Box(tmp_path / "box")


class Reader:
    """Starts readers on a made-up machine and ends them."""

    def __init__(self, box):
        self._box, self.started = box, []

    def __call__(self, folder):
        argv = [sys.executable, "-m", "shoal.agent.devices.watch", str(folder), "0.05", str(self._box.root)]
        self.started.append(subprocess.Popen(argv, env=self._box.env, stdout=subprocess.DEVNULL))
        return self.started[-1]


@pytest.fixture
def reader(box):
    reader = Reader(box)
    yield reader
    for child in reader.started:
        child.kill()
        child.wait()


def read(folder):
    file = gauges_file(folder)
    return json.loads(file.read_text())["gpus"] if file.exists() else None


def test_a_gauge_tells_use_memory_power_heat_clocks_ecc_throttling_and_nvlink(box, library, reader, tmp_path):
    cards = gpu(ecc=2, **BUSY), gpu("Tesla T4", gib=16), gpu(error=15), gpu("NVIDIA A100", mig=2)
    box.nvml(library, *cards, slices=1, xids=[(1, 31)])  # reported before anybody waited
    reader(tmp_path)
    eventually(lambda: read(tmp_path))
    whole, plain, mig, piece = read(tmp_path)
    assert whole == {
        "i": 0, "uuid": "GPU-00000000-1111-2222-3333-444444444444", "util": 98, "mem": 60 * GIB, "mem_total": 80 * GIB, "watts": 650,
        "watts_max": 700, "celsius": 71, "mhz": 1755, "mhz_max": 1980, "ecc": 2, "throttled": 1, "nvlinks": 18, "nvlink_errors": 3,
    }  # fmt: skip
    assert plain == {"i": 1, "uuid": plain["uuid"], "mem": 0, "mem_total": 16 * GIB, "ecc": 0}, (
        "what is not told is left out"
    )
    assert (mig["i"], piece["i"], piece["mem_total"], piece["uuid"][:4]) == (3, 3, 10 * GIB, "MIG-")
    assert set(whole) - {"i", "uuid"} == set(gauges.KEYS) - {"xid"} and piece["part"] == 0
    box.nvml(library, *cards, slices=1, xids=[(1, 31), (0, 13), (0, 48), (3, 94)])
    eventually(lambda: [gauge.get("xid") for gauge in read(tmp_path)] == [48, None, 94, 94])
    assert abs(read(tmp_path)[0]["xid_at"] - time.time()) < 60


@pytest.mark.parametrize("refuses", ["nvmlEventSetCreate", "nvmlDeviceGetSupportedEventTypes"])
def test_where_nvml_reports_no_events_the_kernels_log_is_read(refuses, tmp_path):
    class Nvml(FakeNvml):
        """NVML with two GPUs, of which one is lost, and without events."""

    def refuse(*_):
        raise FakeNvml.NVMLError(3)

    setattr(Nvml, refuses, refuse)
    log = tmp_path / "dev/kmsg"
    log.parent.mkdir()
    log.write_text("6,1,1,-;NVRM: Xid (PCI:0000:18:00): 79, pid=1, GPU has fallen off the bus.\n")
    xids = open_xids(Nvml(), tmp_path)
    assert xids.wait(0.01) == [], "what was reported before is not new"
    with log.open("a") as file:
        file.write("4,9,9,-;NVRM: Xid (PCI:0000:18:00): 48, pid='<unknown>', name=<unknown>, DBE\n"
                   "4,9,9,-;NVRM: Xid (PCI:0000:99:00): 48\nusb 1-1: new device\n")  # fmt: skip
    assert xids.wait(5.0) == [("GPU-a", 48)]
    assert parse_kernel_log("NVRM: Xid (PCI:00000001:18:00.0): 119, pid=7\n") == [("0001:18:00.0", 119)]
    log.unlink()
    assert isinstance(open_xids(Nvml(), tmp_path), NoXids)


class FakeNvml:
    """The functions of pynvml that are asked before the kernel's log is read."""

    class NVMLError(Exception):
        value = 3

    nvmlEventTypeXidCriticalError, nvmlEventTypeDoubleBitEccError = 8, 2

    def nvmlEventSetCreate(self):
        return object()

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        if index == 1:
            raise self.NVMLError
        return index

    def nvmlDeviceGetPciInfo(self, handle):
        return SimpleNamespace(busId=b"00000000:18:00.0")

    def nvmlDeviceGetUUID(self, handle):
        return b"GPU-a"

    def nvmlDeviceGetSupportedEventTypes(self, handle):
        return 0


def test_one_reader_serves_all_agents_of_a_machine_and_ends_with_its_agent(box, library, reader, tmp_path):
    box.nvml(library, gpu(), gpu())
    first = reader(tmp_path)
    eventually(lambda: read(tmp_path))
    assert reader(tmp_path).wait() == 0, "a second reader leaves the first alone"
    assert json.loads(gauges_file(tmp_path).read_text())["pid"] == first.pid
    agent = f"""
import subprocess, sys
from shoal.agent.devices.readings import start_reader
from pathlib import Path
print(start_reader(Path({str(tmp_path / "other")!r})).pid, flush=True)
sys.stdin.read()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", agent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=box.env
    )
    pid = int(parent.stdout.readline())
    eventually(lambda: read(tmp_path / "other"))
    parent.kill()
    parent.communicate()
    eventually(lambda: not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes())


class Machine:
    """A reader that is only counted."""

    def __init__(self, folder):
        self.folder, self.now, self.spawned = folder, 1e9, []
        self.is_running = False

    def __call__(self, folder):
        self.spawned.append(folder)
        return self

    pid = 4321

    def poll(self):
        return None if self.is_running else 0

    def kill(self):
        self.is_running = False

    def wait(self, timeout):
        return 0

    def write(self, *found, folder=None):
        folder = folder or self.folder
        folder.mkdir(exist_ok=True)
        gauges_file(folder).write_text(json.dumps({"pid": 1, "gpus": found}))
        os.utime(gauges_file(folder), (self.now, self.now))

    def readings(self, *names, own=None):
        return Readings(self.folder, names, own=own, spawn=self, clock=lambda: self.now)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path / "shared")


def test_an_agent_uses_the_reader_that_runs_and_starts_one_if_there_is_none(machine):
    ours = machine.readings("GPU-b", "0")
    assert ours.newest() == [] and machine.spawned == [machine.folder]
    machine.write({"i": 0, "uuid": "GPU-a"}, {"i": 1, "uuid": "GPU-b"})
    assert [gauge["uuid"] for gauge in ours.newest()] == ["GPU-b", "GPU-a"]
    assert machine.readings("GPU-a").newest() == [{"i": 0, "uuid": "GPU-a"}] and len(machine.spawned) == 1


def test_old_values_are_not_reported_and_readers_of_a_hung_driver_are_not_started_again_and_again(machine):
    machine.write({"i": 0, "uuid": "GPU-a"})
    ours = machine.readings("GPU-a")
    for _ in range(120):
        machine.now += EVERY_S
        ours.newest()
    assert ours.newest() == [] and len(machine.spawned) <= 12, len(machine.spawned)


def test_an_agent_whose_gpus_the_shared_reader_cannot_see_gets_its_own(machine, tmp_path):
    machine.write({"i": 0, "uuid": "GPU-a"})
    ours = machine.readings("GPU-z", own=tmp_path / "own")
    assert ours.newest() == [] and ours.newest() == []
    assert machine.spawned == [tmp_path / "own"]
    machine.write({"i": 0, "uuid": "GPU-z"}, folder=tmp_path / "own")
    assert ours.newest() == [{"i": 0, "uuid": "GPU-z"}]


def test_without_nvml_the_text_of_nvidia_smi_is_read():
    line = "0, 97, 1024, 24576, 250.5, 61, GPU-a, 300.00, 1700, 1980, 0, 0x0000000000000004"
    unknown = "1, [N/A], 0, 24576, [Not Supported], 40, GPU-b, [N/A], [N/A], [N/A], [N/A], [N/A]"
    first, second = gauges.parse_smi(f"{line}\n{unknown}\nbroken\n")
    assert first == {"i": 0, "uuid": "GPU-a", "util": 97, "mem": 2**30, "mem_total": 24 * 2**30, "watts": 250.5, "watts_max": 300,
                     "celsius": 61, "mhz": 1700, "mhz_max": 1980, "ecc": 0, "throttled": 0}  # fmt: skip
    assert second == {"i": 1, "uuid": "GPU-b", "mem": 0, "mem_total": 24 * 2**30, "celsius": 40}


def test_gauges_of_amd_are_read_from_the_kernels_files(box):
    box.kfd(0)
    box.kfd(1, simds=304, gib=192)
    folder = "sys/bus/pci/devices/0000:01:00.0"
    for name, value in {"gpu_busy_percent": "88", "mem_info_vram_used": str(GIB), "mem_info_vram_total": str(192 * GIB),
                        "hwmon/hwmon4/power1_average": "500000000", "hwmon/hwmon4/temp1_input": "64000"}.items():  # fmt: skip
        box.file(f"{folder}/{name}", value)
    assert list(gauges.by_sysfs(box.root)) == [
        {
            "i": 0,
            "uuid": "GPU-0000000000abc001",
            "util": 88,
            "mem": GIB,
            "mem_total": 192 * GIB,
            "watts": 500,
            "celsius": 64,
        }
    ]


def test_the_inventory_tells_what_nvlink_connects_the_numa_nodes_and_the_measured_values(box, library):
    cards = [gpu(island=1), gpu(island=1), gpu(island=2, util=5), gpu(island=2), gpu()]
    box.nvml(library, *cards)
    box.file("sys/devices/system/node/node1/cpulist", "8-15")
    for index in range(4):
        box.file(f"sys/bus/pci/devices/0000:{16 + index:02x}:00.0/numa_node", str(index // 2))
    found = inventory.scan(box.root, box.env, 60.0)
    assert [(d.island, d.numa) for d in found.offered] == [(0, 0), (0, 0), (1, 1), (1, 1), (None, None)]
    assert found.gauges["GPU-00000002-1111-2222-3333-444444444444"]["util"] == 5


class Watched(UseWatch):
    at = 0


def fed(watch, seconds, *use):
    began = watch.at
    watch.at, said = began + int(seconds), []
    for now in range(began, watch.at + 1, 5):
        said += watch.notices([{"i": i, "util": percent} for i, percent in enumerate(use) if percent is not None], now)
    return said


def test_an_idle_gpu_is_told_once_and_again_after_it_was_used():
    watch = Watched()
    assert fed(watch, IDLE_S - 5, 0, 90) == []
    assert fed(watch, 2 * IDLE_S, 0, 90) == ["GPU 0 has not been used for 15 minutes"]
    assert fed(watch, 60, 50, 90) == []
    assert fed(watch, 2 * IDLE_S, 0, 90) == ["GPU 0 has not been used for 15 minutes"]
    assert fed(Watched(), IDLE_S, 0, 0) == ["All 2 GPUs of this node have not been used for 15 minutes"]
    assert fed(Watched(), IDLE_S, None) == [], "MIG slices do not tell their use"


def test_low_use_over_an_hour_is_told_once():
    watch = Watched()
    [said] = fed(watch, LOW_S, 12, 6)
    assert said.startswith("This node's 2 GPUs were used 9 % of the time in the last 60 minutes")
    assert fed(watch, 3 * LOW_S, 12, 6) == [] and fed(Watched(), 2 * LOW_S, 60) == []
