"""A planted NaN on one of two workers: captured, told, replayed, and never resumed from; by `shoal run` and as a job."""

import json
import os
import subprocess
import sys

import pytest

from shoal.sdk.saving import layout
from shoal.testing.patience import patient

pytest.importorskip("torch")
pytestmark = [pytest.mark.integration, pytest.mark.torch]

TRAIN = """
import os, sys
import torch
from shoal.train import Params, Trainer

torch.set_num_threads(1)
MENDED = "--mended" in sys.argv


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, index):
        x = torch.full((3,), float(index))
        # Step 3 of two workers, step 6 of one.
        if index == 22 and not os.path.exists("clean"):
            x[1] = float("nan")
        return x, torch.tensor([float(index)])


class Mine(Trainer):
    def train_batch(self, batch):
        x, y = batch
        noise = torch.randn(len(x), 1)
        x = torch.nan_to_num(x) if MENDED else x
        return torch.nn.functional.mse_loss(self.model(x / 80) + 0.01 * noise, y / 80)

    def training_data(self):
        return torch.utils.data.DataLoader(Numbers(), batch_size=4, shuffle=False)

    def run_options(self):
        return super().run_options() | {"checkpoint_every": 2}

    def on_start(self):
        print("starts at step", self.run.global_step, flush=True)


parallel = "fsdp" if "--fsdp" in sys.argv else "auto"
params = Params(max_steps=8, batch_size=4, lr=0.01, num_workers=0, keep_models=9, parallel=parallel)
torch.manual_seed(0)
print("outcome", Mine(params, torch.nn.Linear(3, 1)).fit(), flush=True)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bug") / "project"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    return folder


@pytest.fixture(scope="module")
def failed(project):
    """A run of two workers on this machine that has failed: (its directory, what was printed)."""
    done = shoal(project, "run", "--nproc", "2", "train.py", code=1)
    (run,) = (project / "shoal-runs").iterdir()
    return run, done.stderr


def shoal(folder, *args, code=0, **options):
    env = {k: v for k, v in os.environ.items() if not k.startswith("SHOAL_")}
    env |= {"SHOAL_HOME": str(folder.parent / "home"), "SHOAL_NO_AUTOSTART": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "shoal.cli", *args],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=patient(240),
        check=False,
        **options,
    )
    assert code is None or done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def capsule_of(run):
    (capsule,) = (run / "checkpoints" / "bug").iterdir()
    return capsule, json.loads((capsule / "capsule.json").read_text())


def test_a_local_run_fails_with_the_reason_and_keeps_the_step(failed):
    run, printed = failed
    _, about = capsule_of(run)
    assert about["error"]["type"] == "NonFiniteLoss" and about["problems"] == [] and about["step"] == 3
    reason = "the loss of step 3 is nan; the batch has 1 values in 0 that are not finite either"
    assert f"Rank {about['rank']} failed: shoal.train.bug.NonFiniteLoss: {reason}" in printed
    assert f"shoal replay shoal-runs/{run.name}" in printed
    assert about["locals"]["noise"] == "tensor of (4, 1), float32"


def test_a_replay_fails_again_until_the_script_is_mended(project, failed):
    run = f"shoal-runs/{failed[0].name}"
    again = shoal(project, "replay", run, "--json", code=1)
    told = json.loads(again.stdout)
    assert told["outcome"] == "again" and told["error"]["type"] == "NonFiniteLoss"
    assert "NonFiniteLoss: the loss is nan" in again.stderr, "the exception itself comes again"
    mended = shoal(project, "replay", run, "--", "--mended")
    assert "It did not happen again" in mended.stderr


def test_the_debugger_stops_where_the_variables_are(project, failed):
    typed = "p 'noise is', tuple(noise.shape)\nq\n"
    done = shoal(project, "replay", f"shoal-runs/{failed[0].name}", "--pdb", code=None, input=typed)
    assert "('noise is', (4, 1))" in done.stdout, done.stdout + done.stderr


def test_a_resume_goes_on_from_the_last_good_checkpoint_and_not_from_the_capsule(project, failed):
    run, _ = failed
    assert [layout.step_of(p) for p in layout.saved_in(run / "checkpoints")] == [2]
    (project / "clean").touch()
    resumed = shoal(project, "run", "--resume", "--dir", f"shoal-runs/{run.name}")
    assert "starts at step 2" in resumed.stdout and "reason='finished', steps=8" in resumed.stdout


def test_a_sharded_model_is_left_out_and_the_rest_kept_without_waiting_for_the_others(project):
    (project / "clean").unlink(missing_ok=True)
    failed = shoal(project, "run", "--nproc", "2", "--dir", "sharded", "train.py", "--", "--fsdp", code=1)
    capsule, about = capsule_of(project / "sharded")
    assert "NonFiniteLoss: the loss of step 3 is nan" in failed.stderr and about["non_finite"] == []
    assert about["problems"] == [
        "model.pt could not be written: RuntimeError: the model is sharded over several workers"
    ]
    again = shoal(project, "replay", "sharded", code=1)
    assert "uses the initial weights of the script's model" in again.stderr and "It happened again." in again.stderr
    assert {p.name for p in capsule.iterdir()} == {"capsule.json", "batch.pt", "rng.pt", "locals.pt"}


def test_a_job_shows_its_failed_step_replays_it_elsewhere_and_resumes_before_it(server, project):
    (project / "clean").unlink(missing_ok=True)
    argv = ["--accels", "2", "--max-restarts", "0", "--", "train.py"]
    server.cli("training", "run", "nan", "-f", *argv, cwd=project, check=1)
    view = server.inspect("nan")
    assert view["status"] == "failed" and "NonFiniteLoss" in view["reason"] and "is nan" in view["reason"]
    (bug,) = view["bugs"]
    kinds = [e["kind"] for e in view["events"]]
    assert kinds.index("bug") < kinds.index("failed")
    kept = server.json("training", "checkpoints", "nan")
    assert kept and all("bug" not in c["name"] for c in kept)
    assert bug["step"] == 3 and max(c["step"] for c in kept) == 2
    page = server.cli("training", "inspect", "nan").stdout
    assert "Failed steps" in page and "shoal training replay nan" in page

    elsewhere = project.parent / "elsewhere"
    elsewhere.mkdir()
    again = server.cli("training", "replay", "nan", cwd=elsewhere, check=1)
    assert "It happened again." in again.stderr and "NonFiniteLoss" in again.stderr
    assert (elsewhere / "shoal-replays" / "nan" / "code" / "train.py").read_text() == TRAIN
    server.cli("training", "resume", "nan", "-f", check=1)
    lines = [line["text"] for line in server.logs("nan", "--attempt", "2", "--rank", "0")]
    assert "starts at step 2" in lines
    view = server.inspect("nan")
    assert [(b["attempt"], b["step"], b["ready"]) for b in view["bugs"]] == [
        (1, bug["step"], True),
        (2, bug["step"], True),
    ]
    message = next(e["message"] for e in view["events"] if e["kind"] == "resuming")
    assert any(c["id"] in message for c in kept)


def test_a_run_from_elsewhere_brings_its_failed_step(server, project, failed):
    server.cli("sync", str(failed[0]), cwd=project)
    (bug,) = server.inspect("train")["bugs"]
    assert bug["ready"] and bug["error"] == "NonFiniteLoss" and bug["where"].endswith("in train_batch")
    again = server.cli("training", "replay", "train", check=1, cwd=project)
    assert "It happened again." in again.stderr
