"""Sweeps from the command line and from Python, through a real server and real agents."""

import json
import shutil
from pathlib import Path

import pytest

import shoal
from shoal.train import Params, Range

ROOT = Path(__file__).resolve().parents[2]

HUNT = """
import argparse, time, shoal
parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float)
x = parser.parse_args().x
assert shoal.trial_params() == {"x": x}
run = shoal.init()
for step in range(3):
    run.step(loss=x)
    run.evaluate({"eval/loss": x + 1 / (step + 1)})
until = time.monotonic() + 100
while x > 2 and not run.should_stop:  # those that should be stopped wait for it
    assert time.monotonic() < until, "nobody stops this trial"
    run.step(loss=x)
    time.sleep(0.01)
"""

FLAKY = """
import argparse, os, pathlib, shoal
parser = argparse.ArgumentParser()
parser.add_argument("--x", type=int)
x = parser.parse_args().x
if x == 3:
    shoal.skip_trial("three is too large")
if x == 2:
    pathlib.Path(os.environ["FLAG"]).read_text()
shoal.init().evaluate({"eval/loss": x})
"""

TRAINER = """
import torch
from shoal.train import Model, Params, Range, Trainer

class Mine(Params):
    hidden: int = Range([2, 4, 64])
    lr: float = 0.1
    max_steps: int = 3
    max_model_size: int = 40
    num_workers: int = 0

class Net(Model):
    def __init__(self, params):
        super().__init__(params)
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, params.hidden), torch.nn.Linear(params.hidden, 1))

class Mean(Trainer):
    def training_data(self):
        return torch.utils.data.TensorDataset(torch.ones(64, 4))
    def evaluate(self):
        return {"loss": self.params.hidden + self.params.lr}
    def train_batch(self, batch):
        return self.model.layers(batch[0]).square().mean()

if __name__ == "__main__":
    params = Mine()
    Mean(params, Net(params)).fit()
"""


@pytest.fixture
def here(server, monkeypatch):
    """This process finds the server as a person's would."""
    for name in ("SHOAL_URL", "SHOAL_API_KEY", "SHOAL_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SHOAL_HOME", str(server.home))
    return server


def trials_of(server, name):
    return server.json("sweep", "trials", name)


def test_losers_are_stopped_the_best_is_found_and_nothing_is_run_twice(server, code):
    folder = code({"hunt.py": HUNT})
    run = server.cli(
        "sweep", "run", "hunt", "--param", "x=6,5,4,3,2,1", "--search", "asha", "--trials", "6", "--parallel", "3",
        "--dir", str(folder), "-f", "--", "hunt.py",
    )  # fmt: skip
    trials = trials_of(server, "hunt")
    by_x = {trial["params"]["x"]: trial for trial in trials}
    assert sorted(by_x) == [1, 2, 3, 4, 5, 6]
    assert {x: by_x[x]["state"] for x in (3, 4, 5, 6)} == dict.fromkeys((3, 4, 5, 6), "pruned")
    assert by_x[1]["state"] == "done" and by_x[1]["result"] == pytest.approx(1 + 1 / 3)
    lost = server.inspect(by_x[5]["job"])
    assert (lost["status"], lost["spec"]["batch"]) == ("stopped", "hunt")
    assert lost["reason"] == by_x[5]["reason"] and "the best third had ≤" in lost["reason"]
    assert "pruned" in run.stdout and len(run.stdout.splitlines()) == 6, "a line for each trial"
    best = f"by trial {by_x[1]['number']}: x=1"
    assert f"best: 1.333 {best}" in run.stderr and best in server.cli("sweep", "inspect", "hunt").stdout

    known = [x for x in (1, 2) if by_x[x]["state"] == "done"]
    again = server.cli(
        "sweep", "run", "again", "--param", f"x={','.join(map(str, known))}", "--dir", str(folder), "-f", "--", "hunt.py"
    )  # fmt: skip
    assert again.stdout.count("reused") == len(known)
    reused = trials_of(server, "again")
    assert [(t["state"], t["job"]) for t in reused] == [("reused", by_x[t["params"]["x"]]["job"]) for t in reused]
    assert not [job for job in server.json("training", "list") if job["name"].startswith("again-")]


def test_what_failed_is_run_again_and_the_rest_stays(server, code, tmp_path):
    folder, flag = code({"flaky.py": FLAKY}), tmp_path / "flag"
    words = ["--param", "x=1,2,3", "--parallel", "3", "--dir", str(folder), "--env", f"FLAG={flag}"]
    server.cli("sweep", "run", "flaky", *words, "-f", "--", "flaky.py")
    before = trials_of(server, "flaky")
    assert [t["state"] for t in before] == ["done", "failed", "skipped"]
    assert "FileNotFoundError" in before[1]["reason"] and "three is too large" in before[2]["reason"]
    flag.write_text("now")
    server.cli("sweep", "rerun", "flaky", "--failed", "-f")
    after = trials_of(server, "flaky")
    assert [(t["number"], t["params"]["x"], t["state"]) for t in after] == [
        (0, 1, "done"),
        (1, 2, "done"),
        (2, 3, "skipped"),
    ]
    assert after[0] == before[0] and after[1]["result"] == 2.0
    taken = server.cli("sweep", "run", "flaky", *words, "--", "flaky.py", check=4)
    assert "flaky" in taken.stderr and "hint: " in taken.stderr.splitlines()[-1]
    server.cli("sweep", "delete", "flaky", "--jobs", "--yes")
    assert not [job for job in server.json("training", "list") if job["name"].startswith("flaky-")]
    assert "flaky" not in server.cli("sweep", "list").stdout


@pytest.mark.torch
def test_from_python_a_trainers_params_take_the_values_of_the_sweep(here, code):
    class Mine(Params):
        hidden: int = Range([2, 4, 64])
        lr: float = 0.1

    folder = code({"train.py": TRAINER})
    with shoal.sweep("train.py", Mine(lr=0.5), folder=folder, name="typed", parallel=3, quiet=True) as sweep:
        assert sweep.wait(120).best.params == {"hidden": 2, "lr": 0.5}
        found = {trial.params["hidden"]: trial for trial in sweep.trials}
    assert [found[h].state for h in (2, 4, 64)] == ["done", "done", "skipped"]
    assert (found[2].result, found[4].result) == (2.5, 4.5)
    assert "385 parameters, more than max_model_size=40" in found[64].reason


@pytest.mark.torch
def test_the_example_is_swept_as_its_file_says(server, tmp_path):
    folder = tmp_path / "sweep"
    shutil.copytree(ROOT / "examples" / "sweep", folder, ignore=shutil.ignore_patterns("__pycache__"))
    words = [
        "--file",
        "sweep.yaml",
        "--trials",
        "2",
        "--param",
        "lr=0.01",
        "--param",
        "hidden=32,200",
        "--param",
        "depth=2",
    ]
    run = server.cli("sweep", "run", "spirals", *words, "-f", "--json", cwd=folder)
    trials = {t["params"]["hidden"]: t for t in map(json.loads, run.stdout.splitlines())}
    assert trials[32]["result"] < 0.6 and trials[32]["state"] in ("done", "pruned")
