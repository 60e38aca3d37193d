"""Samples tell what a node uses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast

from shoal.agent.devices.system_metrics import SystemMetrics
from shoal.agent.node.workdir import create_time
from shoal.agent.workers.parent import descendants


def test_a_sample_counts_this_machine(tmp_path: Path) -> None:
    found = json.loads(SystemMetrics(os.getpid(), tmp_path).sample())
    assert found["cpu"] >= 0 and found["rss"] >= 0 and found["cores"] == os.cpu_count()
    assert 0 < found["ram"] < found["ram_total"] and found["disk_free"] > 0 and "gpu" not in found


def test_a_sample_holds_the_gauges_of_the_nodes_gpus_and_leaves_their_reader_out(tmp_path: Path) -> None:
    class Found:
        reader_pid = os.getpid()

        def newest(self) -> list[dict[str, Any]]:
            return [{"i": 3, "uuid": "GPU-3", "util": 97.0}]

    passed: list[Any] = []
    metrics = SystemMetrics(os.getppid(), tmp_path, cast(Any, Found()), passed.append)
    found = json.loads(metrics.sample())
    assert found["gpu"] == [{"i": 3, "util": 97.0}] and passed == [[{"i": 3, "uuid": "GPU-3", "util": 97.0}]]
    Found.reader_pid = 0
    assert json.loads(metrics.sample())["procs"] == found["procs"] + 1


def test_descendants_are_found_by_their_parents() -> None:
    assert os.getpid() in descendants(os.getppid())


def test_the_time_a_process_began_is_that_of_psutil() -> None:
    import psutil

    assert abs(create_time(os.getpid()) - psutil.Process().create_time()) < 0.02
