"""Program that reads the gauges of all GPUs of this machine every few seconds and writes them to one file.

One per machine: a lock on its folder admits one reader, whichever agent started it. It ends with that agent, and another agent
starts the next. A process of its own, because a call of a hung driver never returns; its file is then too old to be used.

usage: python -m shoal.agent.devices.watch FOLDER EVERY_S [ROOT]
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.agent.devices import gauges
from shoal.agent.devices.driver_events import NoXids, Xids, open_xids
from shoal.agent.devices.readings import gauges_file
from shoal.agent.workers.parent import prctl

_PR_SET_PDEATHSIG = 1
_LINKS_EVERY = 12
"""Readings from one count of NVLink's errors to the next."""
_SMI_TIMEOUT_S = 20.0


def main(args: list[str]) -> int:
    folder, every_s, root = Path(args[0]), float(args[1]), Path(args[2] if len(args) > 2 else "/")
    starter = os.getppid()
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = gauges_file(folder)
    with file.with_suffix(".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        reader, turn = Reader(root), 0
        while os.getppid() == starter:
            found, draft = reader.read(links=turn % _LINKS_EVERY == 0), file.with_suffix(".new")
            draft.write_text(json.dumps({"pid": os.getpid(), "gpus": found}, separators=(",", ":")))
            draft.replace(file)
            turn += 1
            reader.wait(every_s)
    return 0


class Reader:
    """Reads all gauges once per call; falls back to nvidia-smi where NVML cannot be loaded."""

    def __init__(self, root: Path):
        self._root = root
        self._nvml = _load()
        self._smi = None if self._nvml else shutil.which("nvidia-smi")
        self._links: dict[str, dict[str, Any]] = {}
        """UUID → what NVLink told when it was last asked."""
        self._events: Xids = open_xids(self._nvml, root) if self._nvml is not None else NoXids()
        self._xids: dict[str, tuple[int, float]] = {}
        """UUID → the last error report of the driver, and when it came."""

    def wait(self, timeout_s: float) -> None:
        """Wait for an error report of the driver, but no longer than `timeout_s`."""
        now = time.time()
        self._xids |= {device: (xid, now) for device, xid in self._events.wait(timeout_s)}

    def read(self, *, links: bool = False) -> list[gauges.Gauge]:
        found = list(gauges.by_sysfs(self._root))
        if self._nvml is not None:
            try:
                found += gauges.by_nvml(self._nvml, links=links)
            except self._nvml.NVMLError:  # a new driver, or a GPU that was reset: begin again
                self._nvml = _load()
                self._events = open_xids(self._nvml, self._root) if self._nvml is not None else NoXids()
        elif self._smi:
            found += self._query_smi()
        if links:
            self._links = {g["uuid"]: {k: g[k] for k in g if k.startswith("nvlink")} for g in found}
        return self._with_xids([self._links.get(gauge["uuid"], {}) | gauge for gauge in found])

    def _with_xids(self, found: list[gauges.Gauge]) -> list[gauges.Gauge]:
        """Return the gauges with the last report about each GPU; its MIG slices have that of the GPU."""
        whole = {gauge["i"]: gauge["uuid"] for gauge in found if gauge["uuid"] in self._xids}

        def last(gauge: gauges.Gauge) -> gauges.Gauge:
            uuid = whole.get(gauge["i"], "") if "part" in gauge else gauge["uuid"]
            return dict(zip(("xid", "xid_at"), self._xids.get(uuid, ()), strict=False))

        return [gauge | last(gauge) for gauge in found] if whole else found

    def _query_smi(self) -> list[gauges.Gauge]:
        query = [str(self._smi), f"--query-gpu={','.join(gauges.SMI_FIELDS)}", "--format=csv,noheader,nounits"]
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(query, capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=False)
            return gauges.parse_smi(done.stdout)
        return []


def _load() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
