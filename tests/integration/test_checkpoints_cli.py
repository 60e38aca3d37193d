"""Checkpoints of a real job from the command line: seen while it runs, fetched, resumed from, downloaded with a key alone."""

import io
import json
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import pytest

from shoal.client.local import owner_key, running_server

# Saves every tenth step, and goes on from what it is given. Without an argument it ends; `hang` waits at step 20.
SCRIPT = """
import json, os, sys, time
from pathlib import Path
output, resume = Path(os.environ["OUTPUT_DIR"]), os.environ.get("SHOAL_RESUME_FROM")
start = json.loads((Path(resume) / "trainer_state.json").read_text())["global_step"] if resume else 0
print("start", start, flush=True)
for step in range(start + 10, 31, 10):
    made = output / f"tmp-{step}"
    made.mkdir()
    (made / "model.bin").write_bytes(bytes([step]) * 50_000)
    (made / "config.json").write_text(json.dumps({"architectures": ["GPT2LMHeadModel"], "transformers_version": "4.57.0"}))
    log = [{"step": step, "loss": 4 - step / 10}, {"step": step, "eval_loss": abs(20 - step) / 10}]
    (made / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": log}))
    made.rename(output / f"checkpoint-{step}")
    print("saved", step, flush=True)
    while "hang" in sys.argv and step == 20 and not start:
        time.sleep(0.1)
"""
# The snippet of a job's page, where nothing but the base install is: what other packages bring cannot be imported.
BARE = """
import re, sys
from importlib import metadata
here, wanted = set(), ["shoal-train"]
while wanted:
    name = re.sub("[-_.]+", "-", wanted.pop()).lower()
    try:
        needs = metadata.requires(name) if name not in here else []
    except metadata.PackageNotFoundError:
        continue
    here.add(name)
    wanted += [re.match("[A-Za-z0-9._-]+", need)[0] for need in needs or [] if "extra ==" not in need]
others = {module for module, owners in metadata.packages_distributions().items()
          if not here & {re.sub("[-_.]+", "-", owner).lower() for owner in owners}}
assert {"torch", "numpy", "fastapi", "sqlalchemy"} <= others and not {"shoal", "httpx", "anyio"} & others
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in others:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import shoal
print(shoal.download_checkpoint(job_id=sys.argv[1], token=sys.argv[2], url=sys.argv[3]))
"""


@pytest.fixture(scope="module")
def job(server, tmp_path_factory):
    """A job that has saved twice, was looked at while it ran, and was stopped."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "train.py").write_text(SCRIPT)
    server.cli("training", "run", "saves", "--dir", str(folder), "--", "train.py", "hang")

    def is_saved(view):
        with server.client() as client:
            return view.status == "running" and len(client.checkpoints.list("saves")) == 2

    server.wait_for("saves", is_saved, "two checkpoints while it runs")
    server.cli("training", "stop", "saves", "--wait")
    return "saves"


def test_checkpoints_are_listed_with_what_their_files_say(server, job):
    found = server.json("training", "checkpoints", job)
    assert [(c["name"], c["node"], c["step"], c["train_loss"], c["eval_loss"]) for c in found] == [
        ("checkpoint-10", 0, 10, 3.0, 1.0),
        ("checkpoint-20", 0, 20, 2.0, 0.0),
    ]
    assert {(c["model"], c["version"], c["inference_ready"]) for c in found} == {("GPT2LMHeadModel", "4.57.0", True)}
    header = server.cli("training", "checkpoints", job).stdout.splitlines()[0]
    assert header.split() == "ID NAME NODE STEP TRAIN LOSS EVAL LOSS MODEL VERSION INFERENCE READY TIMESTAMP".split()


def test_one_is_fetched_and_the_newest_is_what_the_job_gives(server, job, tmp_path):
    first = server.json("training", "checkpoints", job)[0]["id"]
    server.cli("checkpoint", "fetch", first, "--destination", str(tmp_path / "first"))
    assert (tmp_path / "first/model.bin").read_bytes() == bytes([10]) * 50_000
    server.cli("training", "fetch", job, "--destination", str(tmp_path))
    with zipfile.ZipFile(tmp_path / "output_0.zip") as archive:
        assert archive.read("output/model.bin") == bytes([20]) * 50_000
    found = server.json("checkpoint", "diff", f"{job}/checkpoint-10", f"{job}/checkpoint-20")
    assert ([f["path"] for f in found["changed"]], found["unchanged"]) == (["model.bin", "trainer_state.json"], 1)


def test_a_key_and_the_jobs_id_are_enough_on_any_machine(server, job, tmp_path):
    record = running_server(server.layout)
    view, key = server.inspect(job), owner_key(server.layout, record)
    code = "import sys; from shoal import download_checkpoint as d; print(d(job_id=sys.argv[1], token=sys.argv[2], url=sys.argv[3]))"
    env = server.env() | {"SHOAL_HOME": str(tmp_path / "elsewhere")}
    command = [sys.executable, "-c", code, view["id"], key, record.url]
    path = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()
    assert path == str(tmp_path / "saves-checkpoint-20")
    assert (Path(path) / "model.bin").read_bytes() == bytes([20]) * 50_000

    (Path(path) / "model.bin").unlink()
    seen = subprocess.run([sys.executable, "-c", BARE, view["id"], key, record.url], env=env, cwd=tmp_path, capture_output=True, text=True)  # fmt: skip
    assert seen.stdout.strip() == path and (Path(path) / "model.bin").stat().st_size == 50_000, seen.stderr

    def get(route, token=key):
        url = f"{record.url}/api/v1/workspaces/default/{route}"
        return urllib.request.urlopen(urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})).read()

    archive = zipfile.ZipFile(io.BytesIO(get(f"jobs/{view['id']}/checkpoint-archive")))
    assert archive.read("saves-checkpoint-20/model.bin") == bytes([20]) * 50_000
    first = server.json("training", "checkpoints", job)[0]["id"]
    assert get(f"checkpoints/{first}/files/model.bin") == bytes([10]) * 50_000
    with pytest.raises(urllib.error.HTTPError, match="401"):
        get(f"checkpoints/{first}/archive", token="wrong")


def test_a_pushed_checkpoint_starts_another_job(server, job, tmp_path):
    server.cli("checkpoint", "fetch", f"{job}/checkpoint-20", "--destination", str(tmp_path / "c"))
    server.cli("checkpoint", "push", "brought", "--file", str(tmp_path / "c"))
    assert json.loads(server.cli("checkpoint", "inspect", "brought", "--json").stdout)["step"] == 20
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text(SCRIPT)
    run = server.cli(
        "training", "run", "from-brought", "--dir", str(tmp_path / "code"), "-C", "brought", "-f", "--", "train.py"
    )
    assert run.stdout.splitlines() == ["start 20", "saved 30"]
    server.cli("checkpoint", "delete", "brought", "--yes")
    server.cli("checkpoint", "inspect", "brought", check=3)


def test_retention_keeps_the_last_the_best_and_what_was_kept_by_hand(server, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    server.cli(
        "training", "run", "retained", "--dir", str(tmp_path), "--keep-last", "1", "--keep-best", "eval_loss", "-f",
        "--", "train.py",
    )  # fmt: skip
    left = [c["name"] for c in server.json("training", "checkpoints", "retained")]
    assert left == ["checkpoint-20", "checkpoint-30"], "the best (20) and the last"
    assert server.json("checkpoint", "keep", "retained/checkpoint-20")["kept"] is True
    assert server.json("checkpoint", "keep", "retained/checkpoint-20", "--undo")["kept"] is False


def test_a_stopped_job_is_resumed_where_it_was(server, job):
    """The last test of the file: it ends the job."""
    run = server.cli("training", "resume", job, "-f")
    assert run.stdout.splitlines() == ["start 20", "saved 30"]
    assert "is given checkpoint-20 (step 20)" in run.stderr
    assert [c["step"] for c in server.json("training", "checkpoints", job)] == [10, 20, 30]
    assert "only stopped and failed jobs" in server.cli("training", "resume", job, check=4).stderr
