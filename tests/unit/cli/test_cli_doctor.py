"""`shoal doctor gpu` on made-up machines: the report, its problems and its exit code."""

import pytest

from shoal.agent.devices import inventory
from shoal.cli import doctor
from shoal.testing.fake_devices import Box, build_nvml, gpu


@pytest.fixture
def box(tmp_path, monkeypatch):
    made = Box(tmp_path)
    scan = inventory.scan
    monkeypatch.setattr(inventory, "scan", lambda: scan(made.root, made.env, 60.0))
    return made


def test_a_machine_without_gpus_is_fine(box):
    report = doctor.examine(tensors=True)
    assert (report["kind"], report["devices"], report["problems"]) == ("cpu", [], [])


def test_gpus_are_reported_with_their_problems(box, tmp_path):
    box.nvml(build_nvml(tmp_path), gpu(), gpu(error=15))
    report = doctor.examine(tensors=False)
    assert [(d["label"], d.get("problem"), d["tensor"]) for d in report["devices"]] == [
        ("GPU 0", None, None),
        ("GPU 1", "GPU is lost", None),
    ]
    assert report["problems"] == ["GPU 1: GPU is lost"]


def test_a_torch_that_cannot_use_the_gpu_is_a_problem(box, tmp_path):
    """The torch of the tests is a CPU build, or finds no driver: either way the tensor fails with torch's own words."""
    box.nvml(build_nvml(tmp_path), gpu())
    report = doctor.examine(tensors=True)
    [problem] = report["problems"]
    assert problem.startswith("GPU 0: ") and ("CUDA" in problem or "NVIDIA" in problem)
