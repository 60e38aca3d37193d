"""The fire drill on real jobs: what it reports is what the scripts themselves say has happened.

`SHOAL_ROUNDS` above 1 (./scripts/soak) adds a training without its optimizer, and nodes that are lost with their agents.
"""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from drill_scripts import BEGINS_AGAIN, GOOD, LOSES_DATA, LOSES_OPTIMIZER

from shoal.testing.engines import eventually
from shoal.testing.patience import patient

pytest.importorskip("torch")
ROUNDS = int(os.environ.get("SHOAL_ROUNDS", "1"))
FORGETFUL = [(LOSES_DATA, "data"), (LOSES_OPTIMIZER, "optimizer")][: 1 if ROUNDS == 1 else 2]


def left(server):
    """Jobs, checkpoints, nodes' directories and the agents' processes."""
    with server.client() as client:
        kept = {job.id for job in client.jobs.list()} | {kept.id for kept in client.checkpoints.list()}
    return kept, {d.name for d in server.layout.nodes_dir.glob("*")}, server.agents()


def truth(client, job):
    """Attempt → (where it began, {step: loss}), by what the script printed."""
    found = {}
    for line in client.jobs.lines(job.id, rank=0):
        began, made = (re.fullmatch(p, line.text) for p in (r"TRUTH begins (\d+)", r"TRUTH made (\d+) (\S+)"))
        if began:
            found[line.attempt] = (int(began[1]), {})
        elif made:
            found[line.attempt][1][int(made[1])] = float(made[2])
    return found


def drill(server, folder, *options, check=0):
    """The report, and the truth about both copies; they are gone when this returns."""
    words = ["training", "drill", *options, "--dir", str(folder), "--keep", "--json", "--", "train.py"]
    report = json.loads(server.cli(*words, check=check).stdout)
    with server.client() as client:
        copies = {job.name.rpartition("-")[2]: job for job in client.jobs.list(search="-drill-")}
        told = [truth(client, copies[name]) for name in ("drilled", "undisturbed")]
        for job in copies.values():
            client.jobs.delete(job.id)
    return report, *told


def test_a_training_that_saves_everything_survives_all_four_faults_exactly(server, code):
    report, told, whole = drill(
        server, code({"train.py": GOOD}), "--accels", "2", "--slow", "rank1:3x@2-6", "--kill", "rank1@14",
        "--sigterm", "node0@18", "--server-down", "1s", "--steps", "80",
    )  # fmt: skip
    slow, killed, ended, away = report["faults"]
    assert report["survived"] and report["exact"], json.dumps(report, indent=1)
    assert sorted(told) == [1, 2, 3]
    assert killed["steps_lost"] == 14 - told[2][0] and told[2][0] > 0
    assert ended["steps_lost"] == max(told[2][1]) - told[3][0] == 0
    assert killed["recover_s"] > 0 and ended["recover_s"] > 0 and away["steps_lost"] == 0
    assert (
        "times as long" in slow["note"] and "steps during the outage" in away["note"] and away["recover_s"] is not None
    )
    assert report["sample_order"] == {"checked": True, "difference": None}
    _, undisturbed = whole[1]
    assert all(undisturbed[s] == value for _, made in told.values() for s, value in made.items())


@pytest.mark.parametrize(("script", "forgotten"), FORGETFUL, ids=[forgotten for _, forgotten in FORGETFUL])
def test_a_training_that_forgets_part_of_itself_survives_but_not_exactly(server, code, script, forgotten):
    report, told, whole = drill(server, code({"train.py": script}), "--kill", "rank0@26", "--steps", "34", check=1)
    (killed,) = report["faults"]
    assert report["survived"] and report["exact"] is False, json.dumps(report, indent=1)
    assert killed["survived"] and killed["steps_lost"] == 26 - told[2][0] and told[2][0] > 0
    parts = next(s for s, value in told[2][1].items() if whole[1][1][s] != value)
    assert killed["first_difference"]["step"] == parts
    assert report["sample_order"]["checked"] == (forgotten == "optimizer")


def test_a_training_that_begins_again_is_told_to_have_lost_all_steps(server, code):
    folder = code({"train.py": BEGINS_AGAIN})
    report, told, _ = drill(server, folder, "--kill", "rank0@12", "--steps", "18", check=1)
    (killed,) = report["faults"]
    assert report["survived"] and killed["survived"] and not report["resumed"]
    assert told[2][0] == 0 and killed["steps_lost"] == 12 - told[2][0]
    assert killed["exact"] and killed["note"] == "started again from the beginning"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGHUP], ids=["Ctrl-C", "a closed terminal"])
def test_whoever_interrupts_a_drill_leaves_nothing(server, code, how):
    (code({"train.py": BEGINS_AGAIN}) / "job.json").write_text(json.dumps({"name": "long", "entry": ["train.py"]}))
    before = left(server)
    words = [sys.executable, "-m", "shoal.cli", "training", "drill", "job.json", "--kill", "rank0@900"]
    process = subprocess.Popen(
        words, env=server.env(), cwd=code({}), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with server.client() as client:
        eventually(lambda: [j.status for j in client.jobs.list(search="long-drill-")] == ["running"], 60)
    process.send_signal(how)
    said = process.communicate(timeout=patient(60))
    assert process.returncode == 130 and "removing the copies" in said[1], said
    eventually(lambda: left(server) == before, 30)


def test_a_job_that_may_not_restart_is_told_not_to_survive(server, code):
    options = (
        "--dir",
        str(code({"train.py": BEGINS_AGAIN})),
        "--max-restarts",
        "0",
        "--kill",
        "rank0@5",
        "--steps",
        "9",
    )
    done = server.cli("training", "drill", *options, "--json", "--", "train.py", check=1)
    report = json.loads(done.stdout)
    assert not report["survived"] and report["faults"][0]["survived"] is False
    assert "SIGKILL" in report["faults"][0]["note"]


def test_a_script_without_the_sdk_is_told_so_and_nothing_is_left(server, code):
    folder = code({"train.py": "print('training')"})
    done = server.cli("training", "drill", "--dir", str(folder), "--kill", "rank0@5", "--", "train.py", check=1)
    assert "reported no steps to Shoal" in done.stderr and "shoal.init()" in done.stderr
    with server.client() as client:
        assert client.jobs.list(search="-drill-") == []


if ROUNDS > 1:

    @pytest.mark.parametrize("number", range(ROUNDS - 1))
    def test_a_node_that_is_lost_with_its_agent_is_replaced_and_the_training_goes_on_exactly(server, code, number):
        options = ("--accels", "2", "--kill", "node0@14", "--kill", "rank1@20", "--steps", "26")
        report, told, _ = drill(server, code({"train.py": GOOD}), *options)
        assert report["survived"] and report["exact"], report
        assert [row["steps_lost"] for row in report["faults"]] == [14 - told[2][0], 20 - told[3][0]]
