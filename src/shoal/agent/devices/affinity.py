"""CPUs next to a worker's accelerator: workers run on the NUMA node of their GPU's PCI slot, where its memory is nearest."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

_ROOT = Path("/")


def near_cpus(nodes: Sequence[int], root: Path = _ROOT, allowed: Collection[int] | None = None) -> list[int]:
    """Return the CPUs of the NUMA nodes of a worker's accelerators that this process may use.

    Empty, which means all: if nothing is known, if the accelerators are on several nodes, or if this process may use none of
    the node's CPUs. `nodes`: NUMA node of each accelerator, -1 if unknown.
    """
    if len(set(nodes)) != 1 or nodes[0] < 0:
        return []
    try:
        text = (root / f"sys/devices/system/node/node{nodes[0]}/cpulist").read_text()
    except OSError:
        return []
    ours = os.sched_getaffinity(0) if allowed is None else set(allowed)
    near = parse_cpulist(text) & ours
    return sorted(near) if near != ours else []


def parse_cpulist(text: str) -> set[int]:
    """Return the numbers in a list of the kernel, such as `0-3,8,10-11`."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            found.update(range(int(first), int(last or first) + 1))
    return found
