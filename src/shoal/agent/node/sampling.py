"""Measurements of a node: its machine while its workers run, and its accelerators before they start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.agent.devices.leftovers import Leftovers

if TYPE_CHECKING:
    from shoal.agent.devices.system_metrics import SystemMetrics
    from shoal.agent.node.heartbeat import Beats
    from shoal.agent.node.workdir import WorkDir
    from shoal.agent.wire import JoinReply, Launch

_READ = ("cuda", "rocm")
"""Kinds of accelerators whose use can be read."""


def device_names(launch: Launch) -> list[str]:
    """Return the UUIDs or numbers of the node's accelerators whose use can be read."""
    return (launch.devices or list(map(str, launch.slots))) if launch.slot_kind in _READ else []


def leftovers(launch: Launch, join: JoinReply, say: Callable[[str], None]) -> Leftovers:
    """Return the check, already started, whether others use the memory of the node's accelerators."""
    found = Leftovers(device_names(launch), wait_s=join.device_wait_s, say=say)
    found.start()
    return found


def system_metrics(
    launch: Launch, work: WorkDir, root_pid: int, beats: Beats, say: Callable[[str], None]
) -> SystemMetrics:
    """Return the measurement of a node's processes below `root_pid`, its disk and its accelerators."""
    from shoal.agent.devices.system_metrics import SystemMetrics
    from shoal.agent.node.gpu_reports import GpuReports

    readings = None
    if names := device_names(launch):
        from shoal.agent.devices.readings import Readings

        readings = Readings(Path(launch.cache_dir) / "devices", names, own=work.root / "devices")
    return SystemMetrics(root_pid, work.root, readings, GpuReports(beats, say))
