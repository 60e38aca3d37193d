"""Memory of GPUs that others use before a job starts: who is named, how long a node waits, and what cannot be read."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from shoal.agent.devices import inventory
from shoal.agent.devices.device import Inventory
from shoal.agent.devices.leftovers import EVERY_S, LEAST_BYTES, Leftovers, in_use
from shoal.agent.node import recovery
from shoal.agent.workers import parent
from shoal.agent.workers.workers import Workers
from shoal.core.faults import Fault, Remedy, classify, is_before_start, remedy
from shoal.testing.fake_devices import GIB, Box, build_nvml, gpu

A, B = "GPU-00000000-1111-2222-3333-444444444444", "GPU-00000001-1111-2222-3333-444444444444"


def used(*gib, users=None):
    gauges = {f"GPU-{n}": {"i": n, "uuid": f"GPU-{n}", "mem": size * GIB} for n, size in enumerate(gib)}
    return Inventory(gauges=gauges, users=users or {})


def test_memory_in_use_is_told_with_the_processes_that_a_driver_names(tmp_path):
    box = Box(tmp_path)
    pids = f"{os.getpid()},999999999"
    box.nvml(build_nvml(tmp_path), gpu(used=GIB), gpu(used=12 * GIB, pids=pids), gpu("NVIDIA A100", mig=1), slices=1)
    found = inventory.scan(box.root, box.env)
    name = Path(f"/proc/{os.getpid()}/comm").read_text().strip()
    assert in_use(found, [A, B]) == (
        1,
        f"GPU 1: 12.0 GiB of its memory are in use before the job starts by process {os.getpid()} ({name}), process 999999999",
    )
    assert in_use(found, ["1"]).local == 0 and in_use(found, [A]) is None and in_use(found, ["GPU-none"]) is None


def test_its_words_mean_that_the_device_is_drained_and_the_job_did_not_run():
    words = in_use(used(3), ["GPU-0"]).text
    assert (classify(words), remedy(words), is_before_start(words)) == (Fault.DEVICE, Remedy.DRAIN, True)
    assert not is_before_start("RuntimeError: CUDA error: uncorrectable ECC error encountered")


class Driver:
    """Tells one reading after the other, the last one for ever."""

    def __init__(self, *readings):
        self.readings, self.said, self.paused = list(readings), [], 0.0

    def take(self):
        found = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        if isinstance(found, Exception):
            raise found
        return found

    def pause(self, seconds):
        self.paused += seconds

    def wait(self, *names, wait_s=60.0, is_over=lambda: False):
        leftovers = Leftovers(names, wait_s=wait_s, say=self.said.append, take=self.take, pause=self.pause)
        leftovers.start()
        found = leftovers.wait(is_over)
        if names:
            leftovers._thread.join()
        return found


def test_a_node_waits_until_the_memory_is_free():
    driver = Driver(used(9), used(4), used(0))
    assert driver.wait("GPU-0") is None and driver.paused == 2 * EVERY_S
    assert driver.said == [
        "[shoal] GPU 0: 9.0 GiB of its memory are in use before the job starts; waiting for up to 60 s"
    ]


def test_what_is_still_in_use_at_the_end_is_returned_with_its_place():
    driver = Driver(used(0, 9))
    assert driver.wait("GPU-0", "GPU-1").local == 1 and driver.paused == 60.0


def test_on_a_private_server_it_is_only_said():
    driver = Driver(used(9))
    assert driver.wait("GPU-0", wait_s=0) is None and driver.paused == 0
    assert driver.said == ["[shoal] GPU 0: 9.0 GiB of its memory are in use before the job starts"]


@pytest.mark.parametrize("reading", [used(0.5), used(), Inventory(), OSError("no driver")])
def test_a_desktop_and_what_cannot_be_read_keep_no_job_from_starting(reading):
    driver = Driver(reading)
    assert driver.wait("GPU-0") is None and (driver.said, driver.paused) == ([], 0) and GIB < LEAST_BYTES


def test_a_node_without_accelerators_reads_nothing_and_a_stop_ends_the_wait():
    assert Driver(AssertionError()).wait() is None
    assert Driver(used(9)).wait("GPU-0", is_over=lambda: True) is None


def test_processes_that_cannot_be_killed_are_known_after_a_longer_wait(monkeypatch):
    waited = []
    monkeypatch.setattr(parent, "kill_below", lambda pid, patience_s=5.0: waited.append(patience_s) or [4711])
    workers = Workers(None)
    assert workers.kill() == [] and workers.unkillable == [4711] and waited == [5.0, 60.0]
    monkeypatch.setattr(parent, "kill_below", lambda pid, patience_s=5.0: [])
    workers = Workers(None)
    workers.kill()
    assert workers.unkillable == []
    monkeypatch.setattr(recovery, "marked_processes", lambda attempt, node: [999999999])
    monkeypatch.setattr(recovery, "_KILL_FOR_S", 0.0)
    assert recovery.kill_marked(SimpleNamespace(attempt_id="att_1", node=0)) == [999999999]
