"""Torch itself agrees that it was launched."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shoal.testing.agent_gang import Gang

pytestmark = pytest.mark.torch

SUM = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(x)
print("sum", int(x), dist.get_world_size(), dist.is_torchelastic_launched(), flush=True)
dist.destroy_process_group()
"""
FAIL = """
import os, time
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    if os.environ["RANK"] == "1":
        raise RuntimeError("rank one gives up")
    time.sleep(100)
main()
"""


# Each way in one sandbox or the other: what a sandbox does to ranks and launchers is the same for all.
@pytest.mark.parametrize(
    ("sandbox", "num_nodes", "accels", "launcher"),
    [
        ("bubblewrap", 2, 2, "direct"),
        ("rewrite", 2, 1, "direct"),
        ("bubblewrap", 1, 2, "torchrun"),
        ("rewrite", 1, 1, "torchrun"),
    ],
    indirect=["sandbox"],
)
def test_all_ranks_sum_over_gloo(
    gang: Callable[..., Gang], sandbox: dict[str, str], num_nodes: int, accels: int, launcher: str
) -> None:
    job = gang(["t.py"], {"t.py": SUM}, num_nodes=num_nodes, accels=accels, launcher=launcher, env=sandbox)
    assert job.finish(120) == [0] * num_nodes
    world = num_nodes * accels
    for rank in range(world):
        assert job.server.log(rank // accels, rank=rank, stream="out") == [
            f"sum {world * (world + 1) // 2} {world} True"
        ]


@pytest.mark.parametrize("launcher", ["direct", "torchrun"])
def test_each_worker_sees_its_own_device_only_if_asked_for(gang: Callable[..., Gang], launcher: str) -> None:
    show = "import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'], flush=True)"
    wish = {"one_device_per_worker": True, "allow_cpu": True}
    job = gang(["t.py"], {"t.py": show}, start=False, accels=2, launcher=launcher, **wish)
    job.slot_kind = "cuda"
    assert job.start().finish(120) == [0]
    assert [job.server.log(rank=rank, stream="out") for rank in (0, 1)] == [["0"], ["1"]]


def test_torchrun_names_the_worker_that_failed(gang: Callable[..., Gang]) -> None:
    job = gang(["t.py"], {"t.py": FAIL}, accels=2, launcher="torchrun")
    job.finish(120)
    last = job.server.last()
    assert last is not None
    assert (last.exit_code, last.failed_rank, last.reason) == (1, 1, "RuntimeError: rank one gives up")


def test_a_torchrun_of_the_users_own_fits_into_the_gang(gang: Callable[..., Gang]) -> None:
    job = gang(["torchrun", "t.py"], {"t.py": SUM}, accels=2)
    assert job.finish(120) == [0]
    # Its workers share one pipe, where unbuffered prints may mingle.
    assert "".join(job.server.log(stream="out")).count("True") == 2
