"""One process: making a way of parallelism, the plain one, the device, the guards' judgement."""

from __future__ import annotations

import subprocess
import sys
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from shoal.sdk import misuse_checks  # noqa: E402
from shoal.sdk.device import backend_for, choose_device  # noqa: E402
from shoal.sdk.parallel import make  # noqa: E402
from shoal.sdk.ranks import group  # noqa: E402

pytestmark = pytest.mark.torch

ALONE = SimpleNamespace(rank=0, local_rank=0, world_size=1)
CPU = torch.device("cpu")


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, shoal.sdk.parallel, shoal.sdk.ranks.group, shoal.sdk.device, shoal.sdk.misuse_checks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("parallel", ["auto", "ddp", "fsdp", "pipeline", "none"])
def test_one_process_needs_no_process_group(parallel: str) -> None:
    way = make(parallel, None, ALONE, CPU)
    model = nn.Linear(2, 2)
    assert way.wrap(model) is model and way.unwrap(model) is model
    assert (way.data_rank, way.data_world) == (0, 1)
    assert not torch.distributed.is_initialized()
    assert group.object_group() is None and group.store() is None


def test_the_full_state_is_a_copy_and_the_live_state_is_not() -> None:
    way = make("none", None, ALONE, CPU)
    model = way.wrap(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    full, live = way.full_state(model, [optimizer]), way.live_state(model, [optimizer])
    assert full is not None and live is not None
    before = full[0]["weight"].clone()
    optimizer.step()
    assert torch.equal(full[0]["weight"], before) and not torch.equal(live[0]["weight"], before)
    way.load(model, [optimizer], *full)
    assert torch.equal(model.weight, before)
    assert torch.equal(optimizer.state_dict()["state"][0]["momentum_buffer"], full[1][0]["state"][0]["momentum_buffer"])


def test_adopting_moves_state_made_before_and_leaves_step_counters() -> None:
    way = make("none", None, ALONE, CPU)
    model = nn.Linear(2, 2, device="meta")
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.state[model.weight] = {"step": torch.tensor(3.0), "exp_avg": torch.ones(2, 2)}
    way.adopt(model, optimizer)
    state = optimizer.state[model.weight]
    assert state["exp_avg"].device.type == "meta" and state["step"].device.type == "cpu"


def test_a_machine_without_accelerators_trains_on_its_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    if hasattr(torch, "xpu"):
        monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    assert choose_device(3) == CPU
    assert backend_for(CPU) == "gloo"


@pytest.mark.parametrize(("devices", "index"), [(4, 3), (1, 0), (2, 1)])
def test_each_worker_takes_the_accelerator_of_its_local_rank(
    monkeypatch: pytest.MonkeyPatch, devices: int, index: int
) -> None:
    taken: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    assert choose_device(3) == torch.device("cuda", index)
    assert taken == [torch.device("cuda", index)]
    assert choose_device(3, "cpu") == CPU


def test_accelerators_keep_gloo_for_cpu_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    assert backend_for(torch.device("cuda", 0)) == "cpu:gloo,cuda:nccl"
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    assert backend_for(torch.device("cuda", 0)) == "gloo"


def test_apple_gpus_are_for_one_process_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device(0).type == "mps"
    assert choose_device(0, alone=False) == CPU


@pytest.mark.parametrize(
    ("found", "codes"),
    [
        ([(0, 11), (1, 12)], []),
        ([(0, 11), (1, 11)], ["same_data"]),
        ([(0, 11), (1, 12), (2, 11)], []),
        ([(0, 11), (0, 11), (1, 12), (1, 12)], []),
        ([(0, 11), (0, 12)], ["different_data"]),
        ([(0, 11), (0, 11), (1, 11), (1, 11)], ["same_data"]),
        ([(0, 11), (0, 11)], []),
        ([(0, None), (1, None)], []),
        ([(0, 11), (1, None)], []),
    ],
)
def test_only_shares_that_should_differ_are_suspected(found: list[tuple[int, int | None]], codes: list[str]) -> None:
    assert [code for code, _ in misuse_checks.judge_batches(found)] == codes


def test_a_warning_goes_to_the_spool_and_on_the_first_rank_to_the_script() -> None:
    written: list[dict[str, Any]] = []
    spool = SimpleNamespace(put=lambda record: written.append({"k": record.kind, **record.encode()}))
    with pytest.warns(UserWarning, match="look here"):
        misuse_checks.warner(spool, 0)("some_code", "look here")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        misuse_checks.warner(spool, 1)("some_code", "look here")
    assert written == [{"k": "w", "code": "some_code", "text": "look here"}] * 2


def test_only_training_batches_are_remembered() -> None:
    model = nn.Linear(2, 2)
    watch = misuse_checks.watch_batches(model)
    with torch.no_grad():
        model(torch.zeros(1, 2))
    assert watch.digest is None
    model(torch.ones(1, 2))
    first = watch.digest
    model(torch.zeros(1, 2))
    assert first is not None and watch.digest == first
