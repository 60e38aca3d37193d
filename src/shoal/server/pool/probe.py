"""Probe of a machine before it joins the pool. Sent there as text, in front of `bootstrap`."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

LOOKUP_S = 3.0
KNOCK_S = 5.0


def report(**words: object) -> None:
    print(json.dumps(words), flush=True)


def probe(task: dict[str, Any]) -> dict[str, Any]:
    """Return the facts that decide whether this machine can join."""
    home = Path(task.get("home") or "~/.shoal").expanduser()
    address = own_address(task["server"])
    knock = Knock()
    task.get("report", report)(listening=knock.port, time=time.time(), address=address)
    existing = next(p for p in [home, *home.parents] if p.exists())
    facts = {
        "hostname": socket.gethostname(),
        "home": str(home),
        "address": address,
        "python": list(sys.version_info[:3]),
        "executable": sys.executable,
        "has_venv": all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")),
        "installed": installed(["shoal-train", *task["packages"], "torch"]),
        "disk_free": shutil.disk_usage(existing).free,
        "writable": os.access(existing, os.W_OK),
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "unreachable": [f"{host}:{port}" for host, port in task["reach"] if not reaches(host, port)],
        "lookup_s": max(lookup_s(address), lookup_s(task["server"])),
        **accelerators(),
    }
    facts["open"] = knock.wait_until_open()
    return facts


def own_address(server: str) -> str:
    """Return this machine's address on the route to the server."""
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probing:
        probing.connect((server, 9))
        return str(probing.getsockname()[0])


class Knock:
    """Port that is open for a moment, to learn whether a firewall lets the server connect."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("", 0))
        self._socket.settimeout(KNOCK_S)
        self.port = self._socket.getsockname()[1]
        self._heard = False
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        with suppress(OSError):
            self._socket.accept()[0].close()
            self._heard = True

    def wait_until_open(self) -> bool:
        self._thread.join()
        self._socket.close()
        return self._heard


def installed(names: list[str]) -> dict[str, Any]:
    from importlib import metadata

    found = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def reaches(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


def lookup_s(address: str) -> float:
    """Return how long a reverse lookup takes, up to `LOOKUP_S`; libraries make one for every connection."""

    def resolve() -> None:
        with suppress(OSError):
            socket.gethostbyaddr(address)

    began = time.monotonic()
    thread = threading.Thread(target=resolve, daemon=True)
    thread.start()
    thread.join(LOOKUP_S)
    return round(time.monotonic() - began, 3)


def accelerators(root: str = "/") -> dict[str, Any]:
    """Return which accelerators this machine seems to have, without a question to a driver.

    It decides which build of torch is installed; the inventory of the installed runtime then tells the devices.
    """
    top = Path(root)
    cards = [d for d in _entries(top / "sys/bus/pci/devices") if _read(d / "class")[:4] == "0x03"]
    vendors = [_read(d / "vendor") for d in cards]
    drivers = ("dev/nvidiactl", "dev/dxg", "proc/driver/nvidia/version")
    nodes = _entries(top / "sys/class/kfd/kfd/topology/nodes")
    return {
        "nvidia": shutil.which("nvidia-smi") is not None or any((top / path).exists() for path in drivers),
        "nvidia_cards": vendors.count("0x10de"),
        "rocm": sum(_is_amd_gpu(_read(node / "properties")) for node in nodes),
        "xpu": sum(_read(d / "vendor") == "0x8086" and d.name != INTEL_BUILT_IN for d in cards),
    }


INTEL_BUILT_IN = "0000:00:02.0"
"""PCI address of every graphics unit that is built into an Intel processor."""
BUILT_IN = (90002, 90003, 90009, 90012, 100103, 100303, 100305, 100306, 100307, 110003, 110500, 110502, 110503)
"""Graphics units of Ryzen processors, which torch cannot use; see shoal.agent.devices.sysfs."""


def _is_amd_gpu(properties: str) -> bool:
    """Return whether a node of KFD is a GPU. One that may not be read belongs to another container."""
    facts = dict(line.split()[:2] for line in properties.splitlines() if len(line.split()) >= 2)
    return int(facts.get("simd_count", 0)) > 0 and int(facts.get("gfx_target_version", 0)) not in BUILT_IN


def _entries(folder: Path) -> list[Path]:
    with suppress(OSError):
        return list(folder.iterdir())
    return []


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text().strip()
    return ""
