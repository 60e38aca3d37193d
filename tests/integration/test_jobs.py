"""Jobs from the command line to their end, through a real server and real agents."""

import json
import re

import pytest

PRELOADS = False
ALL_REDUCE = """
import os
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
total = rank + 1
if world > 1:
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    sent = torch.tensor([float(total)])
    dist.all_reduce(sent)
    total = int(sent)
print(f"rank {rank} of {world} local {os.environ.get('LOCAL_RANK', 0)} node {os.environ.get('GROUP_RANK', 0)} sum {total}", flush=True)
if world > 1:
    dist.destroy_process_group()
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("nodes", "accels", "launcher"), [(1, 1, "direct"), (1, 2, "direct"), (2, 2, "direct"), (2, 2, "torchrun")]
)
def test_ranks_meet_and_every_view_agrees(server, code, nodes, accels, launcher):
    name, world = f"reduce-{nodes}x{accels}-{launcher}", nodes * accels
    folder = code({"train.py": ALL_REDUCE})
    run = server.cli(
        "training", "run", name, "--dir", str(folder), "--nodes", str(nodes), "--accels", str(accels),
        "--launcher", launcher, "-f", "--", "train.py",
    )  # fmt: skip
    expected = {
        f"rank {r} of {world} local {r % accels} node {r // accels} sum {world * (world + 1) // 2}"
        for r in range(world)
    }
    followed = {m.group() for m in re.finditer(r"rank \d+ of \d+ local \d+ node \d+ sum \d+", run.stdout)}
    assert followed == expected

    view = server.inspect(name)
    assert (view["status"], view["exit_code"], view["attempts"]) == ("succeeded", 0, 1)
    assert (view["nodes"], view["accels"]) == (nodes, accels)
    assert view["started_at"] < view["ended_at"]
    assert [e["kind"] for e in view["events"]] == ["queued", "starting", "running", "attempt_ended", "succeeded"]

    listed = {job["name"]: job for job in server.json("training", "list")}[name]
    assert {k: listed[k] for k in ("id", "status", "nodes", "accels", "exit_code")} == {
        k: view[k] for k in ("id", "status", "nodes", "accels", "exit_code")
    }
    lines = server.logs(name)
    assert {line["text"] for line in lines if "sum" in line["text"]} == expected
    assert {line["rank"] for line in lines if "sum" in line["text"]} == set(range(world))
    only = server.logs(name, "--rank", str(world - 1))
    assert {line["rank"] for line in only} == {world - 1}


def test_arguments_after_the_dashes_reach_the_script_verbatim(server, code):
    folder = code({"show.py": "import sys, json; print('ARGS', json.dumps(sys.argv[1:]))"})
    given = ["--help", "--json", "a b", "--nodes", "7", "$HOME", "é", "--", "-f"]
    run = server.cli("training", "run", "verbatim", "--dir", str(folder), "-f", "--", "show.py", *given)
    assert json.loads(run.stdout.split("ARGS ", 1)[1].splitlines()[0]) == given


def test_a_script_that_dies_at_import_fails_once_with_its_own_words(server, code):
    folder = code({"train.py": "import no_such_module_here\n"})
    run = server.cli("training", "run", "dies", "--dir", str(folder), "-f", "--", "train.py", check=1)
    view = server.inspect("dies")
    assert (view["status"], view["exit_code"], view["attempts"]) == ("failed", 1, 1)
    assert "ModuleNotFoundError: No module named 'no_such_module_here'" in view["reason"]
    assert "no_such_module_here" in run.stderr
    assert "Traceback" in run.stdout


def test_environment_and_secrets_reach_the_script_and_nothing_else(server, code):
    server.cli("secret", "create", "wandb", "--value-stdin", input="s3cr3t-value-0815\n")
    folder = code(
        {"train.py": "import os; print('GOT', os.environ['PLAIN'], len(os.environ['KEY']), os.environ['KEY'])"}
    )
    server.cli(
        "training",
        "run",
        "env",
        "--dir",
        str(folder),
        "--env",
        "PLAIN=x=y",
        "--secret",
        "KEY=wandb",
        "-f",
        "--",
        "train.py",
    )
    text = server.cli("training", "logs", "env").stdout
    assert "GOT x=y 17 ***" in text
    everything = text + json.dumps(server.inspect("env")) + server.cli("secret", "list").stdout
    for path in server.home.rglob("*"):
        if path.is_file():
            everything += path.read_bytes().decode("latin-1")
    assert "s3cr3t-value-0815" not in everything


def test_a_job_is_stopped_while_it_waits_and_while_it_runs(server, code):
    folder = code({"train.py": "import time\nprint('up', flush=True)\ntime.sleep(600)"})
    server.cli("training", "run", "runs", "--dir", str(folder), "--accels", "4", "--", "train.py")
    server.cli("training", "run", "waits", "--dir", str(folder), "--", "train.py")
    server.wait_for("runs", lambda j: j.status == "running")
    waiting = server.inspect("waits")
    assert waiting["status"] == "queued"
    assert "next in line" in waiting["waiting"]
    server.cli("training", "stop", "waits")
    assert server.inspect("waits")["status"] == "stopped"
    server.cli("training", "stop", "runs", "--wait")
    view = server.inspect("runs")
    assert (view["status"], view["attempts"]) == ("stopped", 1)
    server.cli("training", "stop", "runs")
    server.cli("training", "delete", "runs", "waits", "--yes")
    assert not {"runs", "waits"} & {j["name"] for j in server.json("training", "list")}


def test_a_running_job_cannot_be_deleted(server, code):
    folder = code({"train.py": "import time; time.sleep(600)"})
    server.cli("training", "run", "busy", "--dir", str(folder), "--", "train.py")
    refused = server.cli("training", "delete", "busy", "--yes", check=4)
    assert "shoal training stop busy" in refused.stderr
    server.cli("training", "stop", "busy", "--wait")


def test_a_time_limit_ends_the_job_and_says_so(server, code):
    folder = code({"train.py": "import time; time.sleep(600)"})
    server.cli("training", "run", "limited", "--dir", str(folder), "--time-limit", "1s", "--", "train.py")
    view = server.wait_for("limited", lambda j: j.status.is_terminal, "ends at its limit")
    assert view.status == "failed"
    assert "time limit" in view.reason


def test_progress_is_read_off_the_log(server, code):
    folder = code({"train.py": "for i in range(1, 41): print(f'step {i}/40 loss 0.5', flush=True)"})
    server.cli("training", "run", "progress", "--dir", str(folder), "-f", "--", "train.py")
    progress = server.inspect("progress")["progress"]
    assert (progress["step"], progress["total"], progress["fraction"]) == (40, 40, 1.0)
    (loss,) = json.loads(server.cli("training", "metrics", "progress", "--json").stdout).items()
    assert loss == ("loss", [[i, 0.5] for i in range(1, 41)])  # and so are metrics, without the SDK
