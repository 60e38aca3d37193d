"""How a node uses its machine: CPU, memory, disk and GPUs, read from /proc and nvidia-smi.

A sample's keys: t; cpu (% of one core, over all processes of the node), rss (bytes, same), procs; cores, load, ram and
ram_total (bytes, machine); disk_free (bytes, where the node works); gpu (list of {i, util, mem, mem_total, watts, celsius}).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.agent.inner import descendants

INTERVAL_S = 5.0
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_GPU_FIELDS = ("index", "utilization.gpu", "memory.used", "memory.total", "power.draw", "temperature.gpu")


class Sampler:
    def __init__(self, pid: int, work_dir: Path, gpus: list[int]):
        self._pid, self._work_dir, self._gpus = pid, work_dir, gpus
        self._smi = shutil.which("nvidia-smi") if gpus else None
        self._cpu: dict[int, float] = {}
        self._at = time.monotonic()

    def sample(self) -> bytes:
        """One record for the spool. CPU use is since the sample before."""
        now, cpu, rss = time.monotonic(), {}, 0
        for pid in descendants(self._pid):
            if (use := _process(pid)) is not None:
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
        if self._smi:
            record["gpu"] = self._gpu()
        return json.dumps(record, separators=(",", ":")).encode()

    def _gpu(self) -> list[dict[str, float | None]]:
        query = [
            f"--query-gpu={','.join(_GPU_FIELDS)}",
            "--format=csv,noheader,nounits",
            "-i",
            ",".join(map(str, self._gpus)),
        ]
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run([str(self._smi), *query], capture_output=True, text=True, timeout=4, check=True)
            return parse_gpus(done.stdout)
        return []


def parse_gpus(text: str) -> list[dict[str, float | None]]:
    """nvidia-smi's CSV; memory in bytes. What a card does not tell is None."""
    found = []
    for line in text.splitlines():
        values = [_number(v) for v in line.split(",")]
        if len(values) == len(_GPU_FIELDS):
            i, util, used, total, watts, celsius = values
            mem, mem_total = (None if v is None else v * 2**20 for v in (used, total))
            found.append({"i": i, "util": util, "mem": mem, "mem_total": mem_total, "watts": watts, "celsius": celsius})
    return found


def _number(text: str) -> float | None:
    with suppress(ValueError):
        return float(text)
    return None


def _process(pid: int) -> tuple[float, int] | None:
    """(CPU seconds, resident bytes), or None if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rfind(b")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[21]) * _PAGE


def _memory() -> dict[str, int]:
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {parts[0].rstrip(":"): int(parts[1]) << 10 for parts in lines if len(parts) > 1}
