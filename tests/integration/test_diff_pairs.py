"""`shoal training diff` on pairs of real jobs, each with one thing planted: it names that thing, and the step where it shows."""

import io
import zipfile

import pytest

from shoal.sdk.samples.order import epoch_order
from shoal.testing.patience import patient

pytest.importorskip("torch")

TRAINING = """
import shoal.testing.light_torch
import argparse, os, pathlib
import torch, shoal
try:
    import gauge
except ImportError:
    gauge = None
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--batch", type=int, default=4)
args = parser.parse_args()
torch.set_num_threads(1)
run = shoal.init(seed=args.seed, config=vars(args))
rows = pathlib.Path(os.environ["DATA_LOCATION"], "numbers.txt").read_text().split()
y = torch.tensor([float(row) for row in rows]).unsqueeze(1)
x = torch.arange(len(rows), dtype=torch.float32).unsqueeze(1) / len(rows)
torch.manual_seed(0)
model = torch.nn.Linear(1, 1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=args.batch, shuffle=True)
model, loader = run.prepare(model, loader)
for x, y in run.loop(loader, max_steps=8):
    model.zero_grad()
    loss = (model(x) - y).pow(2).mean()
    if run.global_step >= 2:
        loss = loss * float(os.environ.get("FACTOR", "1"))
    if gauge is not None:
        loss = loss * gauge.SCALE
    loss.backward()
    with torch.no_grad():  # an optimizer would import much that is not needed here
        for weight in model.parameters():
            weight -= args.lr * weight.grad
    run.step(loss=loss.item())
run.finish()
"""
EDITED = TRAINING.replace(
    "    loss.backward()", "    if run.global_step >= 5:\n        loss = loss + 0.5\n    loss.backward()"
)
SAMPLES, ODD_ONE = 24, 17


def wheel(folder, version, scale):
    info = f"gauge-{version}.dist-info"
    content = {
        "gauge.py": f"SCALE = {scale}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: gauge\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        for path, text in content.items():
            made.writestr(path, text)
    folder.mkdir(exist_ok=True)
    (folder / f"gauge-{version}-py3-none-any.whl").write_bytes(out.getvalue())


@pytest.fixture(scope="module")
def pairs(server, tmp_path_factory):
    """All jobs at once, run to their end."""
    folder = tmp_path_factory.mktemp("pairs")
    for odd in ("0.5", "0.75"):
        numbers = [str(n / 10) for n in range(SAMPLES)]
        numbers[ODD_ONE] = odd
        (folder / "numbers.txt").write_text("\n".join(numbers))
        server.cli("dataset", "push", "numbers", "--file", str(folder / "numbers.txt"))
    for version, scale in (("1.0", 1.0), ("2.0", 1.25)):
        wheel(folder / "wheels", version, scale)
    pip = ["--env", f"PIP_FIND_LINKS={folder / 'wheels'}", "--env", "PIP_NO_INDEX=1"]

    def run(name, files, *options):
        source = folder / name
        for path, text in files.items():
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            (source / path).write_text(text)
        options = ("--dir", str(source), "--dataset", "numbers@1", "--no-check", *options)
        server.cli("training", "run", name, *options, "--", "train.py")

    def wait(client):
        for job in client.jobs.list():
            ended = client.jobs.wait(job.id, timeout_s=patient(240))
            assert ended.status == "succeeded", (
                ended.name,
                ended.reason,
                [line.text for line in client.jobs.lines(job.id)][-20:],
            )

    # Those that can start warm come last, when the server keeps an interpreter for them.
    run("base", {"train.py": TRAINING, "notes/README.md": "old"})
    for name, version in (("gauge-1", "1.0"), ("gauge-2", "2.0")):
        run(name, {"train.py": TRAINING, "requirements.txt": f"gauge=={version}\n"}, *pip)
    with server.client() as client:
        spec = client.jobs.get("base").spec
        client.jobs.create(spec.model_copy(update={"name": "workers", "accels": 2}))
        wait(client)
    run("code", {"train.py": EDITED, "notes/README.md": "new"})
    with server.client() as client:
        for name, change in {
            "same": {},
            "lr": {"entry": ["train.py", "--lr", "0.1"]},
            "seed": {"entry": ["train.py", "--seed", "2"]},
            "batch": {"entry": ["train.py", "--batch", "6"]},
            "data": {"datasets": ["numbers@2"]},
            "variable": {"env": {"FACTOR": "1.5"}},
        }.items():
            client.jobs.create(spec.model_copy(update={"name": name, **change}))
        wait(client)
    return server


PLANTED = {
    "lr": ("base", "--lr: not given → 0.1", 2),
    "seed": ("base", "--seed: not given → 2", 1),
    "batch": ("base", "--batch: not given → 6", 1),
    "data": ("base", "dataset numbers: version 1", 1 + epoch_order(SAMPLES, 1, 0).part(0, SAMPLES).index(ODD_ONE) // 4),
    "code": ("base", "train.py (changed)", 6),
    "gauge-2": ("gauge-1", "gauge: 1.0 → 2.0", 1),
    "variable": ("base", "$FACTOR: not given → 1.5", 3),
    "workers": ("base", "workers: 1 × 1 → 1 × 2", 1),
}


@pytest.mark.parametrize("name", PLANTED)
def test_the_planted_cause_is_named_and_the_step_where_it_shows(pairs, name):
    base, cause, step = PLANTED[name]
    with pairs.client() as client:
        found = client.diffs.of(base, name)
    assert found.causes[0].what.startswith(cause), found.causes
    assert min(f.step for f in (found.metric, found.samples) if f) == step
    assert (found.samples is not None) == (name in ("seed", "batch", "workers"))
    assert found.samples_known and len(found.causes) == 1


def test_a_job_run_twice_is_the_same_to_the_bit(pairs):
    done = pairs.cli("training", "diff", "base", "same")
    assert "identical, bit by bit, from step 1 to 8" in done.stdout and "No known differences in code" in done.stdout


def test_the_command_prints_cause_step_and_lines_and_its_exit_code_tells(pairs):
    done = pairs.cli("training", "diff", "base", "code", "--code", check=1)
    assert "loss differs from step 6 on" in done.stdout and "Likely cause: train.py (changed)" in done.stdout
    assert "+        loss = loss + 0.5" in done.stdout
