"""Slots of a machine with accelerators: their numbers, and what later readings change."""

import threading
from dataclasses import replace

import pytest

from shoal.agent.devices.device import Device, Inventory
from shoal.engines.device_slots import EVERY_S, GONE, DeviceSlots, merged
from shoal.testing.patience import wait_until


def gpu(index, **more):
    return Device(kind="cuda", **({"index": index, "uuid": f"GPU-{index}", "pci": f"0000:{index:02}:00.0"} | more))


GPUS = tuple(gpu(i) for i in range(3))


class Driver:
    """Answers with `found`; the clock moves only by hand."""

    def __init__(self, *devices, **more):
        self.found, self.time, self.asked = Inventory(devices, **more), 0.0, 0
        self.open = threading.Event()
        self.open.set()

    def __call__(self, limit_s):
        self.asked += 1
        self.open.wait(30)
        return self.found

    def slots(self, setting=None, **more):
        return DeviceSlots(setting, take=self, clock=lambda: self.time, **more)

    def read_again(self, slots):
        asked, self.time = self.asked, self.time + EVERY_S
        slots.now()
        wait_until(lambda: self.asked > asked and not slots._reading.locked(), "the reading in the background")
        return slots.now()


def test_each_accelerator_is_a_slot_and_a_setting_limits_them():
    driver = Driver(*GPUS)
    assert (driver.slots().now().kind, driver.slots().now().devices) == ("cuda", GPUS)
    assert driver.slots(2).now().devices == GPUS[:2]
    assert driver.slots(0).now().count == 0
    assert driver.slots(9).now().count == 3


def test_a_limited_number_of_slots_leaves_out_broken_devices_first():
    assert [d.index for d in Driver(gpu(0, problem="lost"), *GPUS[1:]).slots(2).now().devices] == [1, 2]


def test_a_machine_without_accelerators_has_shares_of_its_cpu():
    assert (Driver().slots(3).now().kind, Driver().slots(3).now().count) == ("cpu", 3)


def test_a_driver_that_does_not_answer_leaves_no_slots_and_does_not_turn_the_machine_into_a_cpu():
    driver = Driver(unread=frozenset({"cuda"}), problems=("the NVIDIA driver does not answer",))
    slots = driver.slots()
    assert (slots.now().kind, slots.now().count) == ("cuda", 0)
    driver.found = Inventory(GPUS)
    assert driver.read_again(slots).count == 3


def test_readings_are_repeated_in_the_background_and_never_two_at_once():
    driver = Driver(*GPUS)
    slots = driver.slots()
    slots.now()
    assert driver.asked == 1
    driver.open.clear()
    driver.time += EVERY_S
    slots.now()
    wait_until(lambda: driver.asked == 2, "the second reading")
    driver.time += 10 * EVERY_S
    assert slots.now().devices == GPUS  # the reading under way hangs, and nobody waits for it
    assert driver.asked == 2
    driver.open.set()
    wait_until(lambda: not slots._reading.locked(), "the end of the reading")


def test_a_device_that_is_lost_keeps_its_slot_and_comes_back_to_it():
    driver = Driver(*GPUS)
    slots = driver.slots()
    driver.found = Inventory((GPUS[0], Device(kind="cuda", index=1, problem="GPU is lost"), GPUS[2]))
    assert [d.problem for d in driver.read_again(slots).devices] == ["", "GPU is lost", ""]
    assert slots.now().devices[1].uuid == "GPU-1"
    driver.found = Inventory(GPUS)
    assert driver.read_again(slots).devices == GPUS


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (Inventory(GPUS[1:]), [("GPU-0", GONE), ("GPU-1", ""), ("GPU-2", "")]),
        (Inventory((*GPUS[:2], gpu(3))), [("GPU-0", ""), ("GPU-1", ""), ("GPU-2", GONE), ("GPU-3", "")]),
        (
            Inventory(GPUS[:1], unread=frozenset({"cuda"})),
            [("GPU-0", ""), ("GPU-1", "its driver does not answer"), ("GPU-2", "its driver does not answer")],
        ),
        (Inventory(tuple(replace(d, index=2 - d.index) for d in GPUS)), [("GPU-0", ""), ("GPU-1", ""), ("GPU-2", "")]),
    ],
)
def test_a_new_reading_keeps_the_numbers_of_the_slots(found, expected):
    assert [(d.uuid, d.problem) for d in merged(GPUS, found, "cuda")] == expected


def test_a_gpu_that_was_lost_at_the_start_takes_its_slot_when_it_is_back():
    lost = Device(kind="cuda", index=1, problem="GPU is lost")
    first = merged([], Inventory((GPUS[0], lost, GPUS[2])), "cuda")
    assert len(first) == 3
    assert sorted(d.uuid for d in merged(first, Inventory(GPUS), "cuda")) == ["GPU-0", "GPU-1", "GPU-2"]


def test_slices_of_a_lost_gpu_are_unusable():
    slices = [gpu(0, uuid=f"MIG-{part}", part=part, parent="GPU-0") for part in range(2)]
    again = merged(slices, Inventory((Device(kind="cuda", index=0, problem="GPU is lost"),)), "cuda")
    assert [(d.uuid, d.problem) for d in again] == [("MIG-0", "GPU is lost"), ("MIG-1", "GPU is lost")]


def test_a_new_server_keeps_the_numbers_only_while_agents_of_the_old_one_run(tmp_path):
    file = tmp_path / "devices.json"
    Driver(*GPUS).slots(order_file=file)
    again = Driver(*GPUS[1:])
    assert [d.uuid for d in again.slots(order_file=file, keep_order=True).now().devices] == ["GPU-0", "GPU-1", "GPU-2"]
    assert [d.uuid for d in again.slots(order_file=file).now().devices] == ["GPU-1", "GPU-2"]
    file.write_text("nonsense")
    assert again.slots(order_file=file, keep_order=True).now().count == 2
