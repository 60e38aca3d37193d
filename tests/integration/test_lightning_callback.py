"""Lightning on two real workers: one training, with our callback or without; with it, one that survives a kill."""

import os
import sys

import psutil
import pytest

from shoal.testing import forks
from shoal.testing.engines import eventually
from shoal.testing.patience import patient
from shoal.testing.processes import environment

pytest.importorskip("lightning")
pytestmark = pytest.mark.torch

MODULE = """
import os, sys, time
import lightning as L, torch
torch.set_num_threads(1)

class Line(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        return self.layer(batch).pow(2).mean()

    def validation_step(self, batch, _):
        self.log("val_loss", self.layer(batch).pow(2).mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

loader = torch.utils.data.DataLoader(torch.randn(16, 4), batch_size=2)
quiet = {"enable_progress_bar": False, "enable_model_summary": False}
module = Line()
"""
# The first attempt waits at step 14 to be killed; an epoch is 4 steps.
WITH_CALLBACK = (
    MODULE
    + """
from shoal.integrations.lightning import ShoalCallback

class Waiting(L.Callback):
    def on_train_batch_start(self, trainer, *_):
        while os.environ["SHOAL_ATTEMPT"] == "1" and trainer.global_step == 14:
            time.sleep(0.05)

callbacks = [ShoalCallback(), Waiting()]
trainer = L.Trainer(
    accelerator="auto", devices="auto", max_epochs=6, log_every_n_steps=1, default_root_dir=os.environ["OUTPUT_DIR"],
    callbacks=callbacks, **quiet
)
trainer.fit(module, loader, loader)
print(f"rank {trainer.global_rank} of {trainer.world_size} ended with {module.layer.weight.sum().item():.9f}", flush=True)
"""
)
WITHOUT = (
    MODULE
    + """
print(f"Fabric of {L.Fabric(accelerator='cpu').world_size}", flush=True)
for name, options in {"default": {}, "auto": {"devices": "auto"}, "one": {"devices": 1}}.items():
    module = Line()
    trainer = L.Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, **options, **quiet)
    trainer.fit(module, loader)
    print(f"{name} of {trainer.world_size} ended with {module.layer.weight.sum().item():.9f}", flush=True)
"""
)


def ends(text):
    """Return what the workers printed at their end, without their numbers."""
    return [line.partition(" of ")[2] for line in text.splitlines() if "ended with" in line]


def test_after_kill_9_of_a_worker_both_go_on_as_one_training(server, code):
    folder = code({"train.py": WITH_CALLBACK})
    server.cli("training", "run", "line", "--dir", str(folder), "--accels", "2", "--", "train.py")
    with server.client() as client:
        eventually(lambda: [c for c in client.checkpoints.list("line") if c.step == 12], 180)
    job = server.inspect("line")
    victim = next(
        p
        for p in psutil.process_iter()
        if (env := environment(p)).get("SHOAL_JOB_ID") == job["id"] and env.get("RANK") == "1"
    )
    victim.kill()
    view = server.wait_for("line", lambda j: j.status.is_terminal, "recovers", 180)
    log = server.cli("training", "logs", "line").stdout
    assert (view.status, view.attempts) == ("succeeded", 2), log[-3000:]
    [first, second] = ends(log)
    assert first == second and first.startswith("2 ended"), "one model on both"
    metrics = server.json("training", "metrics", "line")
    assert [step for step, _ in metrics["train/loss"]] == list(range(1, 25))
    found = [c for c in server.json("training", "checkpoints", "line") if not c["only_logs"]]
    assert {c["step"] for c in found} >= {12, 24}
    assert all(c["train_loss"] and c["eval_loss"] for c in found), found


def test_without_the_callback_workers_are_one_training_or_none(tmp_path):
    (tmp_path / "train.py").write_text(WITHOUT)
    env = {k: v for k, v in os.environ.items() if not k.startswith("SHOAL_")} | {"SHOAL_HOME": str(tmp_path / "home")}
    done = forks.run(
        [sys.executable, "-m", "shoal.cli", "run", "--nproc", "2", "train.py"],
        modules=forks.CLI,
        cwd=tmp_path,
        env=env,
        capture_output=True,
        timeout=patient(240),
    )
    told = done.stdout + done.stderr
    assert told.count("Fabric of 2") == 2
    for devices in ("default", "auto"):
        [first, second] = ends("\n".join(line for line in told.splitlines() if f"{devices} of" in line))
        assert first == second and first.startswith("2 ended"), told[-3000:]
    assert len(ends(told)) == 4, "the third is refused"
    assert done.returncode != 0 and "2 workers, but the Trainer is set up for 1" in told, told[-3000:]
