"""A script on an accelerator's slot whose torch cannot use the accelerator: the SDK refuses before anything trains."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

import shoal
from shoal.core.errors import ShoalError

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


def test_a_run_that_began_before_torch_was_imported_is_refused_when_a_device_is_chosen():
    script = (
        "import shoal, sys\n"
        "run = shoal.init('mine')\n"
        "assert 'torch' not in sys.modules\n"
        "run.step(loss=1.0)\n"
        "print('without torch', flush=True)\n"
        "print(run.device)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "without torch\n")
    assert "DeviceMissing: this worker has a cuda slot" in done.stderr


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
