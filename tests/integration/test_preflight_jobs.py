"""Preflights through a real server: what they find keeps a job from the queue, and nothing of them stays."""

import json
import signal
import subprocess
import sys

import pytest
from preflight_plants import PLANTS
from preflight_scripts import GOOD

from shoal.testing.engines import eventually
from shoal.testing.live import live_server
from shoal.testing.patience import patient

pytestmark = pytest.mark.torch
WAITS = "import time\nprint('READY', flush=True)\nwhile True:\n    time.sleep(0.05)\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with live_server(tmp_path_factory.mktemp("home"), slots=4, preflight=True) as server:
        yield server


def left(server):
    """Jobs, checkpoints, nodes' directories and the agents' processes."""
    with server.client() as client:
        jobs, kept = [j.name for j in client.jobs.list()], client.checkpoints.list()
    return jobs, kept, [d.name for d in server.layout.nodes_dir.glob("*")], server.agents()


def test_a_good_job_passes_with_what_it_will_need_and_leaves_nothing(server, code):
    folder = code({"train.py": GOOD})
    asked = ("--dir", str(folder), "--nodes", "2", "--accels", "2", "--json", "--", "train.py", "--epochs", "5")
    found = json.loads(server.cli("preflight", "fine", *asked).stdout)
    assert found["passed"] and found["findings"] == [] and found["complete"], found
    phases = ["import", "arguments", "data", "forward", "backward", "step", "evaluation", "save", "load"]
    assert found["phases"] == phases and found["facts"]["total_steps"] == 160
    facts = found["facts"]
    assert 0 < facts["peak_bytes"] * 2 < facts["memory_needed"] < facts["limit_bytes"]
    assert facts["checkpoint_bytes"] * 2 == facts["disk_needed"] < facts["disk_free"]
    assert found["quote"]["rows"][0]["basis"] == "bound" and found["quote"]["steps"] == 160
    assert left(server) == ([], [], [], [])
    usage = server.json("billing", "usage")["rows"]
    assert [row["key"].startswith("preflight-fine-") for row in usage] == [True]


def test_an_error_keeps_a_job_over_two_nodes_from_the_queue(server, code):
    folder = code({"train.py": PLANTS["labels counted from one"].text})
    run = ("training", "run", "faulty", "--dir", str(folder), "--nodes", "2")
    refused = server.cli(*run, "--", "train.py", check=None)
    assert refused.returncode != 0
    assert "Running a preflight first, as it is to run on more than one node" in refused.stderr
    assert (
        "Labels range from 1 to 4, but there are 4 classes (0 to 3). [labels]" in refused.stderr and not refused.stdout
    )
    assert "was not submitted: its preflight found 1 error" in refused.stderr and "--no-preflight" in refused.stderr
    assert left(server) == ([], [], [], [])
    server.cli(*run, "--no-preflight", "--", "train.py")
    server.wait_for("faulty", lambda view: view.status == "failed")
    server.cli("training", "delete", "faulty", "--yes")


def test_a_warning_goes_with_the_job(server, code):
    folder = code({"train.py": PLANTS["weights nobody uses"].text})
    run = ("training", "run", "warned", "--dir", str(folder), "--time-limit", "2h", "--", "train.py", "--epochs", "1")
    assert "it may run for more than 1 h" in server.cli(*run).stderr
    view = server.wait_for("warned", lambda view: view.status.is_terminal)
    assert view.status == "succeeded" and [f.rule for f in view.preflight.findings] == ["unused-parameters"]
    assert "Findings of the preflight" in server.cli("training", "inspect", "warned").stdout
    with server.client() as client:
        assert [j.name for j in client.jobs.list()] == ["warned"]
        assert len(client.checkpoints.list()) == 1  # of the job itself
    server.cli("training", "delete", "warned", "--yes")


def test_requirements_that_cannot_be_installed_are_found(server, code):
    folder = code({"train.py": GOOD, "requirements.txt": "./not-there.whl\n"})
    found = server.cli("preflight", "missing", "--dir", str(folder), "--", "train.py", check=1)
    assert "[environment]" in found.stdout and "not-there.whl" in found.stdout
    assert left(server)[0] == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "ended by others"])
def test_whoever_is_interrupted_leaves_nothing_running(server, code, how):
    folder, before = code({"train.py": WAITS}), left(server)
    asked = [sys.executable, "-m", "shoal.cli", "preflight", "endless", "--dir", str(folder), "--", "train.py"]
    process = subprocess.Popen(asked, env=server.env(), cwd=server.home, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with server.client() as client:
        eventually(lambda: [j.status for j in client.jobs.list()] == ["running"], 60)
    process.send_signal(how)
    said = process.communicate(timeout=patient(60))
    assert process.returncode == 130, said
    eventually(lambda: left(server) == before, 30)
