"""Network speed between machines: every pair does a few all-reduces. Run `python -m shoal.sdk.speed` on each machine.

Reads {rank, world, master, port, pairs, mb} as JSON from stdin; prints [[one, other, latency_ms, mb_s], …] for the pairs in
which this rank comes first.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from shoal.agent.node.interfaces import interface_to

_TIMEOUT_S = 60
_ROUNDS, _LARGE_ROUNDS = 20, 3


def main() -> None:
    asked = json.load(sys.stdin)
    name = interface_to(asked["master"])
    if name is not None:
        os.environ |= {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name}
    print(json.dumps(measure(asked)))


def measure(asked: dict[str, Any]) -> list[tuple[int, int, float, float]]:
    import torch
    import torch.distributed as dist

    rank, on_gpu = asked["rank"], torch.cuda.is_available()
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    patience = timedelta(seconds=_TIMEOUT_S)
    dist.init_process_group("nccl" if on_gpu else "gloo", init_method=f"tcp://{asked['master']}:{asked['port']}",
                            rank=rank, world_size=asked["world"], timeout=patience)  # fmt: skip
    # Every rank must create all groups in the same order, also those it is not a member of.
    groups = [(one, other, dist.new_group([one, other], timeout=patience)) for one, other in asked["pairs"]]
    small, large = torch.ones(1, device=device), torch.ones(int(asked["mb"]) << 18, device=device)
    found = []
    for one, other, group in groups:
        if rank in (one, other):
            wait = torch.cuda.synchronize if on_gpu else lambda: None
            latency_s = _median(lambda g=group: dist.all_reduce(small, group=g), wait, _ROUNDS)  # type: ignore[misc]
            large_s = _median(lambda g=group: dist.all_reduce(large, group=g), wait, _LARGE_ROUNDS)  # type: ignore[misc]
            if rank == one:
                found.append((one, other, round(1000 * latency_s, 3), round(asked["mb"] * 1.048576 / large_s, 1)))
        dist.barrier()  # one pair at a time, because two would share the network
    dist.destroy_process_group()
    return found


def _median(act: Callable[[], object], wait: Callable[[], None], rounds: int) -> float:
    """Return the median duration in seconds. The first round opens the connection and does not count."""
    taken = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        act()
        wait()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


if __name__ == "__main__":
    main()
