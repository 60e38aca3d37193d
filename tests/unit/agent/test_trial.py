"""Trials of a machine's accelerators: the programs of the trial with real workers on the CPU, and the words of failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.agent.devices import trial
from shoal.agent.devices.device import Device

GPUS = [Device(kind="cuda", index=i, uuid=f"GPU-{i}") for i in range(3)]


@pytest.mark.torch
def test_an_all_reduce_over_all_workers_of_a_machine_is_right() -> None:
    pytest.importorskip("torch")
    assert trial.all_reduce("cpu", [Device(kind="cpu", index=i) for i in range(2)]) == "ok"


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A torch of a machine whose GPU-1 is broken and whose GPUs cannot talk to each other."""
    (tmp_path / "torch/distributed").mkdir(parents=True)
    (tmp_path / "torch/__init__.py").write_text("""
import os
from types import SimpleNamespace as N
shown = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
__version__ = "2"
class Ones:
    def __matmul__(self, other): return self
    def sum(self): return self
    def item(self):
        if shown == ["GPU-1"]: raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
        return 256.0 ** 3
def ones(*shape, device): return Ones()
def full(*args, device): return Ones()
def device(*args): return args
cuda = N(device_count=lambda: len(shown), get_device_name=lambda index: "made up")
""")
    (tmp_path / "torch/distributed/__init__.py").write_text(
        "def init_process_group(*args, **kwargs): raise RuntimeError('NCCL error: unhandled system error')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def test_each_device_is_tried_alone_and_only_those_that_work_take_part_in_the_all_reduce(torch: Path) -> None:
    lost = Device(kind="cuda", index=7, uuid="GPU-7", problem="GPU is lost")
    found = trial.try_all([*GPUS, lost])
    assert [(one["label"], one["uuid"]) for one in found["devices"]] == [(f"GPU {i}", f"GPU-{i}") for i in range(3)]
    assert [one["said"] for one in found["devices"]] == [
        "ok", "RuntimeError: CUDA error: uncorrectable ECC error encountered", "ok",
    ]  # fmt: skip
    assert found["all_reduce"] == "GPU 0: RuntimeError: NCCL error: unhandled system error"
    assert trial.try_all(GPUS[:2])["all_reduce"] is None, "one device has nobody to talk to"
    assert trial.try_all([]) == {"devices": [], "all_reduce": None}
