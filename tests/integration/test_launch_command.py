"""The output of `launch-command`, run unchanged."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.core.ports import free_port
from shoal.testing.patience import patient

SCRIPT = """
import argparse, os, torch, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--data"); parser.add_argument("--note"); parser.add_argument("--out")
args = parser.parse_args()
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)]); dist.all_reduce(total)
words = open(os.path.join(args.data, "words.txt")).read().strip()
line = f"rank {dist.get_rank()} of {dist.get_world_size()} node {os.environ['GROUP_RANK']} sum {total.item():.0f} {words} {args.note} {os.environ['MODE']} {len(os.environ['TOKEN'])}"
print(line, flush=True)
open(os.path.join(args.out, f"{dist.get_rank()}.txt"), "w").write(line)
dist.destroy_process_group()
"""
EXPECTED = {f"rank {r} of 2 node {r} sum 3 hello it's a note quiet 6" for r in range(2)}


@pytest.fixture(scope="module")
def job(server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("code")
    (folder / "train.py").write_text(SCRIPT)
    words = tmp_path_factory.mktemp("data") / "words.txt"
    words.write_text("hello\n")
    server.cli("dataset", "push", "words", "--file", str(words))
    server.cli("secret", "create", "token", "--value-stdin", input="s3cret\n")
    server.cli(
        "training", "run", "byhand", "--dir", str(folder), "--nodes", "2",
        "--dataset", "words", "--env", "MODE=quiet", "--secret", "TOKEN=token", "-f",
        "--", "train.py", "--note", "it's a note", "--out", "/output-checkpoint",
    )  # fmt: skip
    return "byhand"


@pytest.mark.torch
def test_the_lines_of_each_node_run_as_they_are_and_do_what_the_job_did(server, job, tmp_path):
    assert {line["text"] for line in server.logs(job) if line["rank"] is not None} == EXPECTED
    place, port = tmp_path / "by hand", str(free_port())
    options = ["--destination", str(place), "--port", port]
    scripts = [
        server.cli("launch-command", job, *options, "--node", str(node), *(["--fetch"] if node == 0 else [])).stdout
        for node in range(2)
    ]
    assert all("s3cret" not in script and "torchrun" in script for script in scripts)
    env = server.env() | {"TOKEN": "s3cret", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    nodes = [
        subprocess.Popen(["sh", "-c", script], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for script in scripts
    ]
    ended = [node.communicate(timeout=patient(120)) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], ended
    assert {line for out, _ in ended for line in out.splitlines() if line.startswith("rank")} == EXPECTED
    assert {p.name for p in (place / "output-checkpoint").iterdir()} == {f"{r}.txt" for r in range(2)}


def test_a_missing_secret_is_asked_for_and_all_nodes_are_printed_without_a_choice(server, job):
    told = server.cli("launch-command", job)
    assert told.stdout.count("torchrun") == 2
    assert f"shoal launch-command {job} --fetch" in told.stderr
    bare = subprocess.run(["sh", "-c", told.stdout.replace("cd ", "# ")], capture_output=True, text=True, check=False)
    assert "set it to the value of the secret 'token'" in bare.stderr
    described = server.json("launch-command", job, "--node", "1")
    [node] = described["nodes"]
    assert (node["node"], node["secrets"], node["env"]["MODE"]) == (1, {"TOKEN": "token"}, "quiet")
    assert "nodes 0 to 1" in server.cli("launch-command", job, "--node", "2", check=2).stderr
