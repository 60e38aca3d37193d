"""Workers run on the CPUs next to their GPU."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from shoal.agent.devices.affinity import near_cpus, parse_cpulist
from shoal.agent.workers import parent


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for node, text in enumerate(("0-3,8-11\n", "4-7,12-15\n")):
        file = tmp_path / f"sys/devices/system/node/node{node}/cpulist"
        file.parent.mkdir(parents=True)
        file.write_text(text)
    return tmp_path


def test_a_worker_gets_the_cpus_of_its_gpus_numa_node_that_its_site_leaves(root: Path) -> None:
    everything = range(16)
    assert near_cpus([1], root, everything) == [4, 5, 6, 7, 12, 13, 14, 15]
    assert near_cpus([0, 0], root, everything) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert near_cpus([1], root, [0, 4, 5]) == [4, 5]


@pytest.mark.parametrize("nodes", [[], [-1], [0, 1], [7]])
def test_nothing_is_bound_where_nothing_is_known_or_the_gpus_are_apart(root: Path, nodes: list[int]) -> None:
    assert near_cpus(nodes, root, range(16)) == []


def test_a_worker_is_not_bound_to_cpus_that_it_may_not_use_nor_to_all_it_has(root: Path) -> None:
    assert near_cpus([1], root, [0, 1]) == [] and near_cpus([0], root, [0, 1]) == []


def test_lists_of_the_kernel_are_read() -> None:
    assert parse_cpulist("0-2,8,10-11\n") == {0, 1, 2, 8, 10, 11} and parse_cpulist("\n") == set()


def test_a_process_is_bound_and_numbers_that_are_no_cpus_change_nothing() -> None:
    ours = sorted(os.sched_getaffinity(0))
    for cpus, expected in (([ours[-1]], [ours[-1]]), ([], ours), (None, ours), ([5000], ours)):
        read, write = os.pipe()
        if (pid := os.fork()) == 0:
            parent.run_on(cpus)
            os.write(write, json.dumps(sorted(os.sched_getaffinity(0))).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as answer:
            assert json.loads(answer.read()) == expected
        os.waitpid(pid, 0)
