"""Program that reads the accelerators of this machine and prints each as one JSON line, as soon as it is known.

It is a process of its own because a call of a hung driver never returns: `inventory.scan` ends this process then, and keeps the
devices that were printed before.

usage: python -m shoal.agent.devices.read ROOT KIND…
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from shoal.agent.devices import gauges, nvidia, sysfs
from shoal.agent.devices.device import Device

Found = Device | str
READERS: dict[str, Callable[[Path], Iterator[Found]]] = {
    "cuda": lambda root: _nvidia(),
    "rocm": sysfs.amd,
    "xpu": sysfs.intel,
}
GAUGES: dict[str, Callable[[Path], Iterable[gauges.Gauge]]] = {
    "cuda": lambda root: nvidia.gauges_now(),
    "rocm": gauges.by_sysfs,
    "xpu": lambda root: (),
}


def main(args: list[str]) -> int:
    root = Path(args[0])
    if "cuda" in args:
        with suppress(ImportError):  # imported before the time limit begins; without it the text of nvidia-smi is read
            import pynvml  # noqa: F401
    for kind in args[1:]:
        print(json.dumps({"reading": kind}), flush=True)
        try:
            for found in READERS[kind](root):
                if isinstance(found, Device):
                    found = replace(found, numa=sysfs.numa_node(root, found.pci))
                print(json.dumps({"problem": found} if isinstance(found, str) else found.to_json()), flush=True)
            for group in nvidia.islands() if kind == "cuda" else ():
                print(json.dumps({"island": group}), flush=True)
            for gauge in GAUGES[kind](root):
                print(json.dumps({"gauge": gauge}), flush=True)
            for uuid, pids in nvidia.users() if kind == "cuda" else ():
                print(json.dumps({"uuid": uuid, "users": pids}), flush=True)
        except nvidia.Unusable as error:
            print(json.dumps({"failed": kind, "why": str(error)}), flush=True)
            continue
        except Exception as error:  # whatever a driver does, the other kinds are still read
            print(json.dumps({"problem": f"{kind} devices cannot be read: {error}"}), flush=True)
        print(json.dumps({"read": kind}), flush=True)
    return 0


def _nvidia() -> Iterator[Found]:
    try:
        yield from nvidia.by_nvml()
    except nvidia.NoLibrary:
        try:
            yield from nvidia.by_smi()
        except subprocess.TimeoutExpired:
            yield "nvidia-smi does not answer"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
