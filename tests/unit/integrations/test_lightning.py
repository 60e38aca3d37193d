"""Lightning's Trainer with our callback: it resumes, its checkpoints say what they are, and workers never train apart."""

import json
import os
from pathlib import Path

import pytest

from shoal.agent.data.completeness import facts, problem
from shoal.core.errors import UsageError
from shoal.testing.extras import needs

pytestmark = needs("torch", "lightning")


@pytest.fixture(autouse=True, scope="module")
def _imports():
    global torch, L, _lightning_trainer, ShoalCallback, last_checkpoint, start
    import lightning as L
    import torch

    from shoal.integrations import _lightning_trainer
    from shoal.integrations.lightning import ShoalCallback, last_checkpoint
    from shoal.sdk import start


def line():
    """Return a new Lightning module that learns a line."""

    class Line(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
            self.steps = []

        def training_step(self, batch, _):
            self.steps.append(self.trainer.global_step)
            return self.layer(batch).pow(2).mean()

        def validation_step(self, batch, _):
            self.log("val_loss", self.layer(batch).pow(2).mean())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return Line()


@pytest.fixture
def job(tmp_path, monkeypatch):
    """The environment of a job's only worker; returns its output directory."""
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SHOAL_RESUME_FROM", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SHOAL_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path / "out"))
    monkeypatch.setattr(_lightning_trainer, "_resumed", False)
    (tmp_path / "spool").mkdir()
    yield tmp_path / "out"
    if (run := start.current()) is not None:
        run.finish()


def fit(epochs, *more, callback=None, **options):
    """Train on 6 batches an epoch, as one attempt would; the module afterwards."""
    module, quiet = line(), {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    root = {"default_root_dir": os.environ["OUTPUT_DIR"]}
    callbacks = [callback or ShoalCallback(), *more]
    trainer = L.Trainer(max_epochs=epochs, accelerator="cpu", callbacks=callbacks, **root, **quiet, **options)
    loader = torch.utils.data.DataLoader(torch.ones(12, 4), batch_size=2)
    trainer.fit(module, loader, loader)
    if (run := start.current()) is not None:
        run.finish()
    return module


def published(output):
    return sorted(p for p in output.iterdir() if not p.name.startswith("."))


def test_after_a_restart_it_goes_on_from_the_newest_checkpoint(job, monkeypatch):
    fit(2)
    [folder] = published(job)
    monkeypatch.setenv("SHOAL_RESUME_FROM", str(folder))
    assert Path(last_checkpoint()).parent == folder
    assert fit(3).steps == [12, 13, 14, 15, 16, 17]
    assert fit(1).steps == [0, 1, 2, 3, 4, 5], "a second training of the same script is another one"


def test_it_can_be_told_not_to_resume_and_what_it_is_given_wins(job, monkeypatch):
    fit(1)
    monkeypatch.setenv("SHOAL_RESUME_FROM", str(published(job)[0]))
    assert fit(1, callback=ShoalCallback(resume=False)).steps[0] == 0


def test_a_callback_that_comes_too_late_to_resume_says_so(job, monkeypatch):
    fit(1)
    monkeypatch.setenv("SHOAL_RESUME_FROM", str(published(job)[0]))

    class Late(L.Callback):
        resumes = ShoalCallback()

        def on_train_start(self, trainer, pl_module):
            self.resumes.on_train_start(trainer, pl_module)

    trainer = L.Trainer(max_epochs=1, accelerator="cpu", callbacks=[Late()], logger=False, enable_progress_bar=False)
    with pytest.raises(UsageError, match="was not given it"):
        trainer.fit(line(), torch.utils.data.DataLoader(torch.ones(4, 4)))


def test_a_checkpoint_is_whole_and_says_its_step_and_losses(job):
    fit(1)
    [folder] = published(job)
    files = [str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()]
    assert problem(folder, files) is None
    found = facts(folder.name, folder, files)
    assert found["step"] == 6 and found["train_loss"] > 0 and found["eval_loss"] > 0
    told = [json.loads(line) for line in (job.parent / "spool/rank-0.jsonl").read_text().splitlines()]
    assert [(r["i"], r["name"]) for r in told if r["k"] == "c"] == [(6, folder.name)]


def test_checkpoints_that_the_trainer_deletes_go_and_the_newest_stays(job):
    fit(2, L.pytorch.callbacks.ModelCheckpoint(every_n_train_steps=2, save_top_k=1, monitor="step", mode="max"))
    steps = [int(folder.name.removeprefix("lightning-step-")) for folder in published(job)]
    assert 12 in steps and 2 not in steps and len(steps) <= 2


def test_weights_alone_are_nothing_to_resume_from(job, monkeypatch):
    fit(1, L.pytorch.callbacks.ModelCheckpoint(save_weights_only=True))
    monkeypatch.setenv("SHOAL_RESUME_FROM", str(job))
    assert last_checkpoint() is None


def test_a_stop_saves_and_leaves_the_loop_at_that_step(job):
    class Stop(L.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if trainer.global_step == 3:
                start.current().stop("enough")

    module = fit(5, Stop(), min_epochs=5)
    last = module.steps[-1] + 1
    assert last < 30
    assert f"lightning-step-{last:09d}" in [folder.name for folder in published(job)]


class TestGang:
    @pytest.fixture(autouse=True)
    def of_two(self, job, monkeypatch):
        for name, value in (("RANK", 0), ("LOCAL_RANK", 0), ("WORLD_SIZE", 2), ("LOCAL_WORLD_SIZE", 2)):
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "attempt")

    def test_auto_counts_the_workers(self):
        for options in ({}, {"devices": "auto"}, {"accelerator": "cpu", "strategy": "auto"}):
            trainer = L.Trainer(logger=False, enable_checkpointing=False, **options)
            assert trainer.world_size == 2 and type(trainer.strategy).__name__ == "DDPStrategy"
        assert L.Fabric(accelerator="cpu")._connector.strategy.num_processes == 2

    def test_a_trainer_of_one_refuses_to_train_a_model_of_its_own(self):
        trainer = L.Trainer(devices=1, accelerator="cpu", logger=False, callbacks=[ShoalCallback()])
        with pytest.raises(RuntimeError, match=r"2 workers, but the Trainer is set up for 1.*devices=2, num_nodes=1"):
            trainer.fit(line(), torch.utils.data.DataLoader(torch.ones(4, 4)))
