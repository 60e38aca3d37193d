"""verify-resume on real trainings: an exact one is certified, what an inexact one forgets is found and named."""

import json
import os
import sys
from pathlib import Path

import pytest

from shoal.testing import forks
from shoal.testing.patience import patient

pytest.importorskip("torch")

TRAINING = """
import shoal.testing.light_torch
import os
import torch, shoal
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
data = torch.utils.data.TensorDataset(torch.randn(24, 4), torch.randn(24, 1))
run = shoal.init(seed=1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1, (s + 1) / 5))
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
model, optimizer, loader, scheduler = run.prepare(model, optimizer, loader, scheduler)
noise = torch.Generator().manual_seed(7)
average = 0.0
for x, y in run.loop(loader, max_steps=1000):
    optimizer.zero_grad()
    if os.environ.get("FORGETS") == "generator":
        x = x + 0.1 * torch.randn(x.shape, generator=noise)
    loss = (model(x) - y).pow(2).mean()
    average = 0.9 * average + 0.1 * loss.item()
    if os.environ.get("FORGETS") == "average":
        loss = loss * (1 + average)
    loss.backward()
    optimizer.step()
    run.step(loss=loss.item())
    scheduler.step()
run.finish()
"""


README = (Path(__file__).parents[2] / "README.md").read_text()
UNSEEDED = """
import shoal.testing.light_torch
import torch, shoal
torch.set_num_threads(1)
loss_function = torch.nn.functional.mse_loss
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
data = torch.utils.data.TensorDataset({x}, torch.arange(24.0).view(24, 1) / 24)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
"""


def five_lines():
    """The loop of README's first screen, with its five lines put in."""
    diff = README.partition("```diff\n")[2].partition("```")[0]
    lines = [line for line in diff.splitlines() if not line.startswith("-")]
    assert sum(line.startswith("+") for line in lines) == 4 and len(lines) == 6
    return "\n".join(line[2:] for line in lines)


@pytest.fixture
def verify(tmp_path, monkeypatch):
    """Run `shoal verify-resume --json` on a script of this text; (exit code, certificate or None, stderr)."""
    for name in [n for n in os.environ if n.startswith("SHOAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))

    def run(script, *options):
        (tmp_path / "train.py").write_text(script)
        done = forks.run(
            [sys.executable, "-m", "shoal.cli", "verify-resume", *options, "--json", "train.py"],
            modules=forks.CLI,
            cwd=tmp_path,
            capture_output=True,
            timeout=patient(240),
        )
        return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr

    return run


def test_a_job_that_saves_all_it_has_is_certified_over_epochs_and_two_workers(server, code):
    folder = code({"train.py": TRAINING})
    server.cli(
        "training", "run", "exact", "--dir", str(folder), "--accels", "2", "--time-limit", "1s", "--", "train.py"
    )
    done = server.cli("training", "verify-resume", "exact", "--steps", "4", "--more", "5", "--keep", "--json")
    certificate = json.loads(done.stdout)
    assert certificate["bit_exact"] and certificate["world_size"] == 2
    assert (certificate["steps"], certificate["more"]) == (4, 5)
    assert certificate["first_difference"] is None and certificate["num_differences"] == 0
    assert certificate["sample_order"] == {"checked": True, "difference": None}
    assert certificate["hashes"].keys() >= {"model.pt", "optimizer.pt", "training.pt"}
    assert all(first == second for first, second in certificate["hashes"].values())
    whole, broken = (server.inspect(name) for name in certificate["runs"])
    assert (len(whole["attempt_list"]), len(broken["attempt_list"])) == (1, 2)
    assert "SIGKILL" in broken["attempt_list"][0]["reason"]


@pytest.mark.parametrize("forgotten", ["generator", "average"])
def test_what_a_script_forgets_is_caught_and_the_first_weight_it_changes_is_named(verify, forgotten):
    status, certificate, err = verify(TRAINING, "--steps", "3", "--more", "2", "--env", f"FORGETS={forgotten}")
    assert status == 1, err
    assert not certificate["bit_exact"]
    first = certificate["first_difference"]
    assert first["file"] == "model.pt" and first["where"] == "0.weight" and first["max_difference"] > 0
    assert certificate["first_metric"]["step"] == 4 and certificate["first_metric"]["name"] == "loss"
    assert certificate["sample_order"] == {"checked": True, "difference": None}


def test_the_five_lines_of_the_readme_are_exact_without_a_seed(verify):
    script = UNSEEDED.format(x="torch.arange(96.0).view(24, 4) / 96") + five_lines()
    status, certificate, err = verify(script, "--steps", "4", "--more", "5")
    assert status == 0 and certificate["bit_exact"], err
    [remark] = certificate["remarks"]
    assert "sets no seed for" in remark and "torch" in remark


def test_what_a_script_without_a_seed_draws_before_it_trains_is_a_remark(verify):
    script = UNSEEDED.format(x="torch.randn(24, 4)") + five_lines()
    status, certificate, err = verify(script, "--steps", "4", "--more", "5")
    assert status == 0 and certificate["bit_exact"], err
    assert any("draws random numbers before run.prepare" in remark for remark in certificate["remarks"])


def test_a_script_without_the_sdk_is_told_so(verify):
    status, certificate, err = verify("print('training')")
    assert status == 1 and certificate is None
    assert "reported no steps to Shoal" in err and "shoal.init()" in err


def test_a_script_that_prepares_nothing_is_told_so(verify):
    status, _, err = verify("import shoal\nrun = shoal.init()\nfor i in range(30): run.step(loss=1.0)\n")
    assert status == 1 and "run.prepare" in err


def test_a_script_that_fails_is_told_why(verify):
    status, _, err = verify("raise ValueError('no data')")
    assert status == 1 and "ValueError: no data" in err
