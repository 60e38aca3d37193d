"""Scheduler for pytest-xdist that runs test files which share a resource of the machine one after another.

Every file is its own group; files that use the same resource (Ray, Slurm, network namespaces, swarms) form one group, which
one worker runs in order. `--dist loadgroup` of pytest-xdist does this by markers, but writes the group into
`Item._nodeid`, which pytest 9.2 no longer reads. Here the controller decides by the file's name, and no marker is needed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

RESOURCES = {
    "ray": re.compile(r"test_(ray|cluster_faults|pool)"),
    "slurm": re.compile(r"test_slurm"),
    "hosts": re.compile(r"test_(hosts|lease)"),
    "swarm": re.compile(r"test_swarm"),
}
"""Resource that only one file at a time may use → pattern of the files that use it."""


def file_of(nodeid: str) -> str:
    """Return the file of a test by its node id."""
    return nodeid.partition("::")[0]


def group_of(nodeid: str) -> str:
    """Return the resource that the file of a test needs exclusively, else the file."""
    file = file_of(nodeid)
    name = file.rpartition("/")[2]
    return next((resource for resource, files in RESOURCES.items() if files.match(name)), file)


def expected(nodeids: Iterable[str], seconds: Mapping[str, int], unknown: int = 60) -> Counter[str]:
    """Return the expected seconds of every group of the tests; a file without a known time counts as `unknown`."""
    total: Counter[str] = Counter()
    for file in {file_of(nodeid) for nodeid in nodeids}:
        total[group_of(file)] += seconds.get(file, unknown)
    return total


def make_scheduler(config: Any, log: Any) -> Any:
    """Return the scheduler for `pytest_xdist_make_scheduler`."""
    from xdist.scheduler.loadscope import LoadScopeScheduling  # type: ignore[import-untyped]

    class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return GroupScheduling(config, log)
