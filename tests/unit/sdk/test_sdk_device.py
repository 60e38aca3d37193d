"""A script on an accelerator's slot whose torch cannot use the accelerator: the SDK refuses before anything trains."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import shoal
from shoal.core.errors import ShoalError
from shoal.sdk.start import current

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(torch.version.cuda is not None, reason="needs a torch that cannot use CUDA")

REFUSAL = r"this worker has a cuda slot, but torch .* is a CPU build \(torch.version.cuda is None\)\. .*--allow-cpu"


@pytest.fixture(autouse=True)
def promised(monkeypatch, tmp_path):
    for name in ("SHOAL_SPOOL", "SHOAL_ALLOW_CPU", "SHOAL_EMULATE_CUDA", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SHOAL_DEVICE", "cuda")
    monkeypatch.chdir(tmp_path)


def test_init_refuses_and_leaves_no_run_behind(tmp_path):
    with pytest.raises(ShoalError, match=REFUSAL) as caught:
        shoal.init("mine")
    assert caught.value.code == "device_missing"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["SHOAL_ALLOW_CPU", "SHOAL_EMULATE_CUDA"])
def test_who_allows_the_cpu_or_emulates_cuda_trains_on_the_cpu(monkeypatch, name):
    monkeypatch.setenv(name, "1")
    with shoal.init("mine") as run:
        assert run.device.type == "cpu"


@pytest.mark.parametrize("kind", ["", "cpu"])
def test_a_cpu_slot_promises_nothing(monkeypatch, kind):
    monkeypatch.setenv("SHOAL_DEVICE", kind)
    with shoal.init("mine") as run:
        assert run.device.type == "cpu"


def test_the_trainer_refuses():
    from shoal.train import Params, Trainer

    class Mine(Trainer):
        def training_data(self):
            raise AssertionError("it has begun")

    with pytest.raises(ShoalError, match=REFUSAL):
        Mine(Params(epochs=1), torch.nn.Linear(1, 1)).fit()


def test_the_callback_for_hugging_face_refuses_though_the_run_began_elsewhere(monkeypatch):
    hf = pytest.importorskip("shoal.integrations.hf")
    monkeypatch.setattr("shoal.sdk.start.current", lambda: SimpleNamespace(global_step=0, resumed=False))
    with pytest.raises(ShoalError, match=REFUSAL):
        hf.ShoalCallback().on_train_begin(SimpleNamespace(), SimpleNamespace(global_step=0), None)


def test_the_callback_for_lightning_refuses_before_the_first_batch(monkeypatch):
    lightning = pytest.importorskip("shoal.integrations.lightning")
    from lightning.pytorch import Trainer
    from lightning.pytorch.demos.boring_classes import BoringModel

    class Model(BoringModel):
        def training_step(self, *args):
            raise AssertionError("it has begun")

    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = Trainer(max_steps=1, accelerator="cpu", callbacks=[lightning.ShoalCallback()], **quiet)
    with pytest.raises(ShoalError, match=REFUSAL):
        trainer.fit(Model())


def test_lightning_with_our_callback_trains_on_the_cpu_where_that_is_allowed(monkeypatch):
    lightning = pytest.importorskip("shoal.integrations.lightning")
    from lightning.pytorch import Trainer
    from lightning.pytorch.demos.boring_classes import BoringModel

    monkeypatch.setenv("SHOAL_ALLOW_CPU", "1")
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(
        max_steps=1, limit_val_batches=0, accelerator="cpu", callbacks=[lightning.ShoalCallback()], **quiet
    )
    trainer.fit(BoringModel())
    current().finish()
    assert trainer.global_step == 1


def test_a_process_group_is_bound_to_its_gpu_and_its_time_limit_can_be_set(monkeypatch):
    from shoal.sdk import device

    assert device.group_options(torch.device("cpu")) == {"backend": "gloo"}
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    gpu = torch.device("cuda", 1)
    assert device.group_options(gpu) == {"backend": "cpu:gloo,cuda:nccl", "device_id": gpu}
    monkeypatch.setenv("SHOAL_GROUP_TIMEOUT_S", "90")
    assert device.group_options(torch.device("cpu"))["timeout"].total_seconds() == 90
