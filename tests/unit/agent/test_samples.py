"""Samples tell what a node uses."""

from __future__ import annotations

import json
import os
from pathlib import Path

from shoal.agent.inner import descendants
from shoal.agent.node import create_time
from shoal.agent.samples import Sampler, parse_gpus


def test_a_sample_counts_this_machine(tmp_path: Path) -> None:
    found = json.loads(Sampler(os.getpid(), tmp_path, []).sample())
    assert found["cpu"] >= 0 and found["rss"] >= 0 and found["cores"] == os.cpu_count()
    assert 0 < found["ram"] < found["ram_total"] and found["disk_free"] > 0 and "gpu" not in found


def test_gpus_are_read_from_nvidia_smi_and_what_is_unknown_stays_unknown() -> None:
    text = "0, 97, 1024, 24576, 250.5, 61\n1, [N/A], 0, 24576, [Not Supported], 40\nbroken\n"
    assert parse_gpus(text) == [
        {"i": 0, "util": 97, "mem": 2**30, "mem_total": 24 * 2**30, "watts": 250.5, "celsius": 61},
        {"i": 1, "util": None, "mem": 0, "mem_total": 24 * 2**30, "watts": None, "celsius": 40},
    ]


def test_descendants_are_found_by_their_parents() -> None:
    assert os.getpid() in descendants(os.getppid())


def test_the_time_a_process_began_is_that_of_psutil() -> None:
    import psutil

    assert abs(create_time(os.getpid()) - psutil.Process().create_time()) < 0.02
