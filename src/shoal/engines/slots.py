"""What this machine offers: its GPUs, else shares of its cores."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path


def detect(setting: int | None = None) -> tuple[str, int]:
    """(kind, slots). A `setting` overrides the count, never the kind; 0 is none at all."""
    for kind, count in (("cuda", _cuda()), ("rocm", _rocm())):
        if count:
            return kind, count if setting is None else setting
    return "cpu", max(1, (os.cpu_count() or 1) // 2) if setting is None else setting


def cpu_threads(kind: str, slots: int, cores: int | None = None) -> int:
    """Threads a worker may use so that a full machine (this one, unless its cores are given) is not over-subscribed."""
    share = max(1, (cores or os.cpu_count() or 1) // max(1, slots))
    return share if kind == "cpu" else min(8, share)


def _cuda() -> int:
    folder = Path("/proc/driver/nvidia/gpus")
    if folder.is_dir():
        return sum(1 for _ in folder.iterdir())
    if shutil.which("nvidia-smi"):
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False)
        return sum(line.startswith("GPU ") for line in done.stdout.splitlines()) if done.returncode == 0 else 0
    return 0


def _rocm() -> int:
    nodes = Path("/sys/class/kfd/kfd/topology/nodes")
    if not nodes.is_dir():
        return 0
    # Nodes without a simd count are CPUs.
    return sum("simd_count 0\n" not in (n / "properties").read_text() for n in nodes.iterdir())
