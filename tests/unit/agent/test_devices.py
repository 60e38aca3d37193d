"""Accelerators of made-up machines: a fake NVML, fake sysfs trees and a fake nvidia-smi, each with its inventory and message."""

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from shoal.agent.devices import inventory, nvidia
from shoal.agent.devices.device import Device, Inventory
from shoal.testing.fake_devices import GIB, Box, build_nvml, gpu
from shoal.testing.patience import patient

UNREADABLE = Path("/proc/sys/net/ipv4/route/flush")
"""A file that not even root may read."""
SMI = "{i}, GPU-{i}, Tesla T4, 00000000:0{i}:00.0, 15360, 535.54, N/A"


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    return build_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def box(tmp_path):
    return Box(tmp_path)


def take(box, timeout_s=10.0):
    return inventory.scan(box.root, box.env, timeout_s)


def h100s(box, library, **visible):
    box.nvml(library, *[gpu() for _ in range(8)])
    box.env |= visible


def mig(box, library, **visible):
    box.nvml(library, gpu("NVIDIA A100", mig=7), gpu("NVIDIA A100"), slices=7)
    box.env |= visible


def _amd(box, library):
    box.kfd(0)
    box.kfd(1, simds=304, gib=192)
    box.kfd(2, simds=304, gib=192)


def _amd_with_a_foreign_device(box, library):
    _amd(box, library)
    properties = box.kfd(3, simds=304, gib=192)
    properties.unlink()
    properties.symlink_to(UNREADABLE)


def _ryzen(box, library):
    box.kfd(0)
    box.kfd(1, simds=4, target=100306, gib=1, name="raphael")


def _amd_masked(box, library):
    _amd(box, library)
    box.env |= {"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}


def _arc(box, library):
    box.intel(128, "0000:00:02.0", gib=0, driver="i915")
    box.intel(130, "0000:8a:00.0", gib=16, label="Intel Arc A770")
    box.intel(129, "0000:03:00.0", gib=48, driver="i915")


def _smi_with_a_lost_gpu(box, library):
    lost = "Unable to determine the device handle for GPU 0000:01:00.0: GPU is lost."
    box.smi("\n".join([SMI.format(i=0), lost, SMI.format(i=2)]), code=15)


LOST = "GPU 1: GPU is lost"
STATES = {
    # name: (machine, kind of its slots, label of each device that can be used, part of each message)
    "no accelerator": (lambda box, library: None, "cpu", [], []),
    "8 of one model": (h100s, "cuda", [f"GPU {i}" for i in range(8)], []),
    "two models": (
        lambda box, library: box.nvml(library, gpu("NVIDIA A100", gib=40), gpu("Tesla T4", gib=16)),
        "cuda",
        ["GPU 0", "GPU 1"],
        [],
    ),
    "one GPU off the bus": (
        lambda box, library: box.nvml(library, gpu(), gpu(error=15), gpu()),
        "cuda",
        ["GPU 0", "GPU 2"],
        [LOST],
    ),
    "ECC errors": (
        lambda box, library: box.nvml(library, gpu(), gpu(ecc=2)),
        "cuda",
        ["GPU 0"],
        ["GPU 1 (NVIDIA H100 80GB HBM3): 2 uncorrectable ECC errors since the last reset"],
    ),
    "a row remap is pending on one and failed on another": (
        lambda box, library: box.nvml(library, gpu(), gpu(remap=1), gpu(remap=2)),
        "cuda",
        ["GPU 0"],
        ["broken memory is replaced at its next reset: nvidia-smi --gpu-reset, or reboot", "row remapping has failed"],
    ),
    "7 slices and a whole GPU": (mig, "cuda", [*[f"GPU 0 slice {i}" for i in range(7)], "GPU 1"], []),
    "MIG mode without slices": (
        lambda box, library: box.nvml(library, gpu(mig=7), gpu()),
        "cuda",
        ["GPU 1"],
        ["GPU 0 (NVIDIA H100 80GB HBM3) is in MIG mode but has no slices"],
    ),
    "site leaves two by number": (
        lambda box, library: h100s(box, library, CUDA_VISIBLE_DEVICES="4,5"),
        "cuda",
        ["GPU 4", "GPU 5"],
        ["CUDA_VISIBLE_DEVICES=4,5 of this machine leaves 2 of 8 cuda devices"],
    ),
    "site leaves one by the start of its UUID": (
        lambda box, library: h100s(box, library, CUDA_VISIBLE_DEVICES="GPU-00000003"),
        "cuda",
        ["GPU 3"],
        ["leaves 1 of 8"],
    ),
    "site leaves a slice": (
        lambda box, library: mig(box, library, CUDA_VISIBLE_DEVICES="MIG-00000002-5555-6666-7777-888888888888"),
        "cuda",
        ["GPU 0 slice 2"],
        ["leaves 1 of 8"],
    ),
    "site leaves none": (
        lambda box, library: h100s(box, library, CUDA_VISIBLE_DEVICES=""),
        "cpu",
        [],
        ["CUDA_VISIBLE_DEVICES= of this machine leaves 0 of 8 cuda devices"],
    ),
    "an entry that names nothing hides those after it": (
        lambda box, library: h100s(box, library, CUDA_VISIBLE_DEVICES="1,99,2"),
        "cuda",
        ["GPU 1"],
        ["leaves 1 of 8"],
    ),
    "driver hangs": (
        lambda box, library: box.nvml(library, gpu(), first="init hang"),
        "cuda",
        [],
        ["the NVIDIA driver does not answer"],
    ),
    "third GPU hangs": (
        lambda box, library: box.nvml(library, gpu(), gpu(), gpu(hang=1), gpu()),
        "cuda",
        ["GPU 0", "GPU 1"],
        ["the NVIDIA driver does not answer after 2 devices"],
    ),
    "driver was updated under a running kernel": (
        lambda box, library: box.nvml(library, gpu(), first="init error 18"),
        "cuda",
        [],
        ["the NVIDIA driver cannot be used: RM has detected an NVML/RM version mismatch; reboot this machine"],
    ),
    "the driver is not loaded": (
        lambda box, library: box.nvml(library, first="init error 9"),
        "cpu",
        [],
        ["the NVIDIA driver is installed but not loaded; jobs run on the CPU"],
    ),
    "memory shared with the processor": (
        lambda box, library: box.nvml(library, gpu("NVIDIA GB10", gib=-1)),
        "cuda",
        ["GPU 0"],
        [],
    ),
    "only nvidia-smi, with one GPU lost": (
        _smi_with_a_lost_gpu,
        "cuda",
        ["GPU 0", "GPU 2"],
        ["nvidia-smi: Unable to determine the device handle for GPU 0000:01:00.0: GPU is lost."],
    ),
    "cards without a driver": (
        lambda box, library: [box.card("0000:10:00.0"), box.card("0000:11:00.0")],
        "cpu",
        [],
        ["2 NVIDIA cards, but the driver is not loaded; jobs run on the CPU"],
    ),
    "two from AMD": (_amd, "rocm", ["GPU 0", "GPU 1"], []),
    "one from AMD with memory errors": (
        lambda box, library: [
            _amd(box, library),
            box.file("sys/bus/pci/devices/0000:02:00.0/ras/umc_err_count", "ue: 3\nce: 9\n"),
            box.file("sys/bus/pci/devices/0000:02:00.0/ras/gfx_err_count", "ue: 0\nce: 0\n"),
        ],
        "rocm",
        ["GPU 0"],
        ["GPU 1 (gfx942): 3 uncorrectable memory errors since the last reset"],
    ),
    "one of AMD's belongs to somebody else": (
        _amd_with_a_foreign_device,
        "rocm",
        ["GPU 0", "GPU 1"],
        ["AMD device of node 3 cannot be read (no permission); it is not used"],
    ),
    "a Ryzen's own graphics": (
        _ryzen,
        "cpu",
        [],
        ["the graphics unit raphael is built into the processor; it is not used for training"],
    ),
    "AMD with both of its masks": (
        _amd_masked,
        "rocm",
        ["GPU 1"],
        ["ROCR_VISIBLE_DEVICES=1 of this machine leaves 1 of 2"],
    ),
    "two from Intel beside the processor's own": (_arc, "xpu", ["GPU 0", "GPU 1"], []),
    "Intel with a mask": (
        lambda box, library: [_arc(box, library), box.env.update(ZE_AFFINITY_MASK="1.0")],
        "xpu",
        ["GPU 1"],
        ["ZE_AFFINITY_MASK=1.0 of this machine leaves 1 of 2 xpu devices"],
    ),
}


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Open all of a server but its port, on a made-up machine; return what it read, and its machine as it shows it."""
    from shoal.core.settings import Layout, ServerSettings
    from shoal.engines import device_slots
    from shoal.server.pool import machines
    from shoal.server.run import open_context
    from shoal.server.scheduler.loop import Scheduler
    from shoal.testing.server import make_context

    opened = []

    def start(box, timeout_s):
        seen = []
        made_up = SimpleNamespace(
            scan=lambda timeout_s: seen.append(inventory.scan(box.root, box.env, limit)) or seen[-1], TIMEOUT_S=10.0
        )
        limit = timeout_s
        monkeypatch.setattr(device_slots, "inventory", made_up)
        make_context(tmp_path / "home").db.close()  # an empty database: creating one takes longer than the rest
        opened.append(open_context(Layout(tmp_path / "home"), ServerSettings(warm=False)))
        Scheduler(opened[0], "http://nowhere").pass_once()
        [shown] = machines.capacity(opened[0]).machines
        return seen[0], shown

    yield start
    for context in opened:
        context.db.close()


@pytest.mark.parametrize("state", STATES)
def test_a_machine_is_read_as_it_is_and_the_server_starts(state, box, library, server):
    make, kind, usable, messages = STATES[state]
    if state.startswith("one of AMD's") and not UNREADABLE.exists():
        pytest.skip("no file here that root cannot read")
    make(box, library)
    limits = {"driver hangs": 0.2, "third GPU hangs": 0.8}
    found, shown = server(box, limits.get(state, 60.0))
    assert found.kind == shown.kind == kind
    assert [d.label for d in shown.devices if not d.problem] == usable and shown.slots_free == shown.slots_total - len(
        [d for d in shown.devices if d.problem]
    )
    assert [line for line in shown.problems if "free on the disk" not in line] == list(found.problems)
    assert [device.label for device in found.offered if not device.problem] == usable
    assert len(found.problems) == len(messages), found.problems
    assert all(part in line for part, line in zip(messages, found.problems, strict=True)), found.problems


def test_a_device_is_described_with_all_that_its_driver_tells(box, library):
    box.nvml(
        library, gpu("NVIDIA A100", gib=40, mig=7), gpu("Tesla T4", gib=16), slices=1, first="driver 535.1\ncuda 12020"
    )
    piece, whole = take(box).offered
    versions = {"driver": "535.1", "runtime": "12.2"}
    assert whole == Device(
        kind="cuda",
        index=1,
        uuid="GPU-00000001-1111-2222-3333-444444444444",
        minor=1,
        pci="0000:11:00.0",
        model="Tesla T4",
        memory=16 * GIB,
        **versions,
    )
    assert (piece.parent, piece.part, piece.memory) == ("GPU-00000000-1111-2222-3333-444444444444", 0, 10 * GIB)
    assert piece.model == "NVIDIA A100 MIG 1g.10gb"
    assert Device.from_json(piece.to_json() | {"later": 1}) == piece
    assert "is_faulty" not in piece.to_json() and piece.to_json()["index"] == 0


def test_only_lost_gpus_and_uncorrectable_errors_affect_what_runs_on_a_device(box, library):
    box.nvml(library, gpu(), gpu(error=15), gpu(ecc=1), gpu(remap=1), gpu(error=999))
    assert [device.is_faulty for device in take(box).offered] == [False, True, True, False, False]
    box.kfd(5, simds=304)
    box.file("sys/bus/pci/devices/0000:05:00.0/ras/umc_err_count", "ue: 1\n")
    amd = [device for device in take(box).devices if device.kind == "rocm"]
    assert [(d.is_faulty, d.problem) for d in amd] == [(True, "1 uncorrectable memory error since the last reset")]


def test_a_driver_that_falls_silent_in_the_middle_leaves_what_was_read(box, library):
    box.nvml(library, gpu(), gpu(hang=3), gpu())
    found = take(box, timeout_s=0.8)
    assert [d.label for d in found.offered] == ["GPU 0"] and found.unread == {"cuda"}


def test_amd_devices_have_their_address_memory_and_identity(box):
    _amd(box, None)
    first = take(box).offered[0]
    assert (first.pci, first.memory, first.minor, first.uuid) == (
        "0000:01:00.0",
        192 * GIB,
        129,
        "GPU-0000000000abc001",
    )


def test_a_hung_driver_is_waited_for_no_longer_than_the_limit(box, library):
    box.nvml(library, gpu(), first="init hang")
    began = time.monotonic()
    found = take(box, timeout_s=0.5)
    assert time.monotonic() - began < patient(10.0)  # the limit, and the start of the child on a busy machine
    assert found.unread == {"cuda"}


def test_a_machine_without_accelerators_starts_no_process(box, monkeypatch):
    monkeypatch.setattr(inventory.subprocess, "Popen", None)
    assert take(box) == Inventory()


def test_without_the_bindings_the_text_of_nvidia_smi_is_read():
    lines = list(
        nvidia.parse_smi(SMI.format(i=3) + "\n4, GPU-4, NVIDIA GB10, 0000000f:01:00.0, [N/A], 580.1, Enabled\n")
    )
    assert [(d.index, d.memory, d.pci, bool(d.problem)) for d in lines] == [
        (3, 15360 << 20, "0000:03:00.0", False),
        (4, None, "000f:01:00.0", True),
    ]
    assert list(nvidia.parse_smi("", "NVIDIA-SMI has failed", 9)) == [
        "nvidia-smi failed with exit code 9: NVIDIA-SMI has failed"
    ]


def test_this_machine_can_be_read():
    assert take_here().kind in ("cpu", "cuda", "rocm", "xpu")


def take_here():
    return inventory.scan(env=os.environ, timeout_s=30.0)
