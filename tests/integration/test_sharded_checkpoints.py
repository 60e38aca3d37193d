"""Shards that ranks wrote on the disks of several nodes are one checkpoint: whole for every node of the next attempt, or not there."""

import pytest

# Each rank writes its shard to its own node's disk, as torch.distributed.checkpoint does without a shared one.
TRAIN = """
import os, pathlib, signal, time, torch, torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
weights = distribute_tensor(torch.zeros(64, 8), mesh, [Shard(0)])
if came_from := os.environ.get("SHOAL_RESUME_FROM"):
    dcp.load({"weights": weights}, checkpoint_id=came_from)
    print("here", *sorted(path.name for path in pathlib.Path(came_from).iterdir()), flush=True)
    print("sum", float(weights.full_tensor().sum()), "of", weights.to_local().shape[0], "rows each", flush=True)
else:
    for step in (1, 2):
        weights = distribute_tensor(torch.full((64, 8), float(step)), mesh, [Shard(0)])
        dcp.save({"weights": weights}, checkpoint_id=f"/output-checkpoint/step-{step}")
    while not pathlib.Path(os.environ["ENOUGH"]).exists():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
dist.destroy_process_group()
"""


@pytest.mark.torch
def test_shards_of_two_nodes_are_kept_joined_and_loaded_again(server, code, tmp_path):
    folder, enough = code({"train.py": TRAIN}), tmp_path / "enough"
    options = ["--nodes", "2", "--env", f"ENOUGH={enough}", "--dir", str(folder)]
    server.cli("training", "run", "shards", *options, "--", "train.py")
    server.wait_for(
        "shards", lambda job: sum(e.kind == "checkpoint" for e in job.events) == 4, "is safe on both nodes", 90
    )
    enough.touch()
    view = server.wait_for("shards", lambda job: job.status.is_terminal, "ends", 90)
    assert (view.status, view.attempts) == ("succeeded", 2), view.reason
    said = [line["text"] for line in server.logs("shards") if line["attempt"] == 2]
    assert said.count("here .metadata __0_0.distcp __1_0.distcp") == 2, "both nodes have all of it"
    assert said.count(f"sum {64 * 8 * 2.0} of 32 rows each") == 2
    kept = [(c["name"], c["node"]) for c in server.json("training", "checkpoints", "shards")]
    assert sorted(kept) == [("step-1", 0), ("step-1", 1), ("step-2", 0), ("step-2", 1)], "each part once"
