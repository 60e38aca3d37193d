"""A server is replaced by this version: the data directory of the version before opens as it is, and what runs there goes on running.

The version before is the last commit before packages, settings and commands got their present names. Its code is taken from
the repository's history and runs as its own server, agents and commands; the tests skip where a clone has no history.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from io import BytesIO
from pathlib import Path

import pytest
from lease_guests import Guest, keys  # noqa: F401

from shoal.core.settings import ServerSettings
from shoal.testing.live import LiveServer
from shoal.testing.patience import patient, wait_until

ROOT = Path(__file__).resolve().parents[2]
BEFORE = "6a1c060"
IN_SANDBOX = ("asyncssh", "cryptography", "cffi", "_cffi_backend*", "typing_extensions.py")
"""Packages that a lease needs inside its walls, where only its own environment is seen."""
TRAIN = """
import os, pathlib, time, shoal
run = shoal.init(config={"lr": 0.1})
for step in range(1, 4):
    run.step(loss=1 / step)
run.evaluate({"eval/loss": 0.25})
folder = pathlib.Path("/output-checkpoint/last")
folder.mkdir(parents=True, exist_ok=True)
(folder / "model.bin").write_bytes(b"weights" * 1000)
print("code of", shoal.__file__, flush=True)
while "FLAG" in os.environ and not os.path.exists(os.environ["FLAG"]):
    time.sleep(0.05)
run.step(loss=0.125)
run.finish()
"""
SWEEP = """
import argparse, shoal
parser = argparse.ArgumentParser()
parser.add_argument("--x", type=int)
x = parser.parse_args().x
shoal.init().evaluate({"eval/loss": x})
"""


class OldServer:
    """The version before, run by an interpreter that has it installed."""

    def __init__(self, python: Path, home: Path):
        self.python, self.home = python, home
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        self._env = kept | {"SHOAL_HOME": str(home), "NO_COLOR": "1"}

    def json(self, *args: str):
        return json.loads(self.cli(*args, "--json"))

    def cli(self, *args: str) -> str:
        done = subprocess.run(
            [self.python, "-m", "shoal.cli", *args],
            cwd=self.home,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=patient(180),
        )
        assert done.returncode == 0, f"{args}: {done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """Return the interpreter of an environment with the version before; other packages are those of this environment."""
    made = subprocess.run(["git", "-C", ROOT, "archive", BEFORE, "src"], capture_output=True)
    if made.returncode:
        pytest.skip(f"this clone does not have commit {BEFORE}")
    folder = tmp_path_factory.mktemp("before")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    with tarfile.open(fileobj=BytesIO(made.stdout)) as archive:
        archive.extractall(folder, filter="data")
    here = Path(sysconfig.get_path("purelib"))
    there = next((folder / "venv/lib").glob("python*/site-packages"))
    (folder / "src" / "shoal").rename(there / "shoal")
    for name in IN_SANDBOX:
        for found in here.glob(name):
            copy = shutil.copytree if found.is_dir() else shutil.copy
            copy(found, there / found.name)
    (there / "others.pth").write_text(f"{here}\n")
    return folder / "venv/bin/python"


@pytest.fixture(scope="module")
def upgraded(python, tmp_path_factory, keys):  # noqa: F811
    """Return what the old server showed before it was killed, and the server of this version on its data directory."""
    home, flag = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("flag") / "end"
    (home / "server").mkdir()
    (home / "server" / "settings.toml").write_text(
        "lease_s = 25.0\npreflight_after_h = 0.0\nwarm = false\nlease_disk_gb = 1\n"
    )
    code = tmp_path_factory.mktemp("code")
    (code / "train.py").write_text(TRAIN)
    (code / "hunt.py").write_text(SWEEP)
    old = OldServer(python, home)
    server = LiveServer(home)
    try:
        old.cli("server", "start", "--slots", "4")
        old.cli("training", "run", "past", "--dir", str(code), "--follow", "--", "train.py")
        old.cli("sweep", "run", "hunt", "--dir", str(code), "--param", "x=1,2", "--follow", "--", "hunt.py")
        lease = None
        if shutil.which("ssh"):
            lease = old.json("machine", "rent", "--name", "box", "--time", "1h", "--ssh-key", str(keys / "mine.pub"))
        old.cli("training", "run", "present", "--dir", str(code), "--env", f"FLAG={flag}", "--", "train.py")
        server.wait_for("present", lambda job: job.progress is not None, "the old job does not run")
        seen = {
            "jobs": {job["name"]: job["status"] for job in old.json("training", "list")},
            "metrics": old.cli("training", "metrics", "past", "--csv"),
            "checkpoints": [row["id"] for row in old.json("training", "checkpoints", "past")],
            "ledger": old.json("training", "ledger", "past"),
            "sweep": old.json("sweep", "inspect", "hunt")["status"],
            "usage": usage_of(old.json("billing", "usage"), "past"),
            "verified": old.json("billing", "verify"),
        }
        server.kill()
        yield seen, server.start(), lease, flag
        flag.touch()
    finally:
        server.close()


def usage_of(shown, job: str) -> dict:
    """Return the row of one job in what `billing usage` shows."""
    return next(row for row in shown["rows"] if row["key"] == job)


def test_the_running_job_is_adopted_and_ends_well(upgraded, python):
    seen, server, _, flag = upgraded
    assert seen["jobs"]["present"] == "running"
    assert server.inspect("present")["status"] == "running"
    flag.touch()
    server.wait_for("present", lambda job: job.status.is_terminal)
    job = server.inspect("present")
    assert (job["status"], job["attempts"]) == ("succeeded", 1), "it was started again"
    said = "\n".join(line["text"] for line in server.logs("present"))
    assert f"code of {python.parents[1]}" in said, "its worker was not one of the version before"
    # A job has ended when its workers have; its last records may follow.
    wait_until(lambda: "0.125" in server.cli("training", "metrics", "present", "--csv").stdout, "the last point")


def test_jobs_metrics_checkpoints_and_sweeps_are_as_they_were(upgraded, tmp_path):
    seen, server, _, _ = upgraded
    assert {job["name"] for job in server.json("training", "list")} >= seen["jobs"].keys()
    assert server.cli("training", "metrics", "past", "--csv").stdout == seen["metrics"]
    assert [row["id"] for row in server.json("training", "checkpoints", "past")] == seen["checkpoints"] != []
    server.cli("training", "fetch", "past", "--destination", str(tmp_path / "got"), "--no-zip")
    assert (next((tmp_path / "got").rglob("model.bin"))).read_bytes() == b"weights" * 1000
    assert server.json("training", "samples", "past") == server.json("training", "ledger", "past") == seen["ledger"]
    assert server.json("sweep", "inspect", "hunt")["status"] == seen["sweep"] == "finished"


def test_the_ledger_is_whole_and_old_settings_hold(upgraded):
    seen, server, _, _ = upgraded
    before = seen["verified"]
    assert before["entries"] > 0, "no node has ended, so the ledger had nothing to lose"
    server.cli("billing", "verify", "--head", f"{before['seq']}:{before['head']}")  # fails if an earlier entry differs
    assert usage_of(server.json("billing", "usage"), "past") == seen["usage"]
    assert ServerSettings.load(server.layout).node_timeout_s == 25.0


def test_a_lease_is_reached_as_before(upgraded, keys):  # noqa: F811
    _, server, lease, _ = upgraded
    if lease is None:
        pytest.skip("needs the OpenSSH client")

    def box():
        with server.client() as client:
            return next(row for row in client.leases.list() if row.name == "box").model_dump(mode="json")

    wait_until(lambda: box()["status"] == "running", "the lease is not adopted")  # its agent reports within seconds
    assert Guest(box(), keys / "mine", keys).ssh("echo here").stdout == b"here\n"
    server.cli("machine", "release", "box")


def test_after_a_downgrade_the_version_before_works_on_its_database_again(upgraded, python):
    """The last test here: it replaces the server of this version by the one before."""
    seen, server, _, _ = upgraded
    server.cli("server", "stop")
    server.cli("server", "downgrade", "--yes")
    old = OldServer(python, server.layout.root)
    old.cli("server", "start", "--slots", "4")
    try:
        now = {job["name"]: job["status"] for job in old.json("training", "list")}
        assert {name: now.get(name) for name in ("past", "hunt-0", "hunt-1")} == {
            name: seen["jobs"].get(name) for name in ("past", "hunt-0", "hunt-1")
        }
        assert old.cli("training", "metrics", "past", "--csv") == seen["metrics"]
        before = seen["verified"]
        old.cli("billing", "verify", "--head", f"{before['seq']}:{before['head']}")
    finally:
        old.cli("server", "stop")
