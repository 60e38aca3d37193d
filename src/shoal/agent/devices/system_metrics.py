"""System metrics of a node: CPU, memory and disk from /proc, GPUs from the one reader of the machine.

Keys of a record: t; cpu (% of one core, all processes of the node), rss (bytes, same), procs; cores, load, ram and ram_total
(bytes, machine); disk_free (bytes, disk of the work directory); gpu (list of {i, util, mem, …}, see `gauges.KEYS`).
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.agent.workers.parent import descendants

if TYPE_CHECKING:  # every agent imports this module, most of them without GPUs
    from shoal.agent.devices.gauges import Gauge
    from shoal.agent.devices.readings import Readings

INTERVAL_S = 5.0
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class SystemMetrics:
    """Measures the processes below `pid` and the disk of the work directory, and passes on the gauges of the node's GPUs."""

    def __init__(
        self,
        pid: int,
        work_dir: Path,
        readings: Readings | None = None,
        on_gauges: Callable[[Sequence[Gauge]], None] = lambda gauges: None,
    ):
        """Set up. `readings` finds the gauges of the node's GPUs; `on_gauges` is called with each reading of them."""
        self._pid, self._work_dir = pid, work_dir
        self._readings, self._on_gauges = readings, on_gauges
        self._cpu: dict[int, float] = {}
        self._at = time.monotonic()

    def sample(self) -> bytes:
        """Return one record for the outbox. CPU usage is measured since the previous record."""
        now, cpu, rss = time.monotonic(), {}, 0
        reader = self._readings.reader_pid if self._readings else None
        for pid in descendants(self._pid):
            if pid != reader and (use := _process(pid)) is not None:
                cpu[pid] = use[0]
                rss += use[1]
        spent = sum(max(0.0, seconds - self._cpu.get(pid, 0.0)) for pid, seconds in cpu.items())
        span, self._cpu, self._at = max(1e-3, now - self._at), cpu, now
        memory = _memory()
        record: dict[str, Any] = {
            "t": round(time.time(), 3),
            "cpu": round(100 * spent / span, 1),
            "rss": rss,
            "procs": len(cpu),
            "cores": os.cpu_count() or 1,
            "load": os.getloadavg()[0],
            "ram": memory["MemTotal"] - memory["MemAvailable"],
            "ram_total": memory["MemTotal"],
            "disk_free": shutil.disk_usage(self._work_dir).free,
        }
        if self._readings is not None:
            gauges = self._readings.newest()
            record["gpu"] = [{k: v for k, v in gauge.items() if k != "uuid"} for gauge in gauges]
            self._on_gauges(gauges)
        return json.dumps(record, separators=(",", ":")).encode()


def _process(pid: int) -> tuple[float, int] | None:
    """Return CPU seconds and resident bytes of a process, or None if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rfind(b")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[21]) * _PAGE


def _memory() -> dict[str, int]:
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {parts[0].rstrip(":"): int(parts[1]) << 10 for parts in lines if len(parts) > 1}
