"""What a machine finds out about itself before it joins the pool. Sent there as text, in front of `pool_bootstrap`."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

LOOKUP_S = 3.0
KNOCK_S = 5.0


def tell(**words: object) -> None:
    print(json.dumps(words), flush=True)


def probe(order: dict[str, Any]) -> dict[str, Any]:
    """All that decides whether this machine can join."""
    home = Path(order.get("home") or "~/.shoal").expanduser()
    address = own_address(order["server"])
    knock = Knock()
    order.get("tell", tell)(listening=knock.port, time=time.time(), address=address)
    existing = next(p for p in [home, *home.parents] if p.exists())
    facts = {
        "hostname": socket.gethostname(),
        "home": str(home),
        "address": address,
        "python": list(sys.version_info[:3]),
        "executable": sys.executable,
        "has_venv": all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")),
        "installed": installed(),
        "disk_free": shutil.disk_usage(existing).free,
        "writable": os.access(existing, os.W_OK),
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "unreachable": [f"{host}:{port}" for host, port in order["reach"] if not reaches(host, port)],
        "lookup_s": max(lookup_s(address), lookup_s(order["server"])),
        **gpus(),
    }
    facts["open"] = knock.heard()
    return facts


def own_address(server: str) -> str:
    """The one by which this machine reaches the server: no interface to name, nothing to configure."""
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probing:
        probing.connect((server, 9))
        return str(probing.getsockname()[0])


class Knock:
    """A port opened for a moment, to learn whether a firewall lets the server in."""

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

    def heard(self) -> bool:
        self._thread.join()
        self._socket.close()
        return self._heard


def installed() -> dict[str, Any]:
    from importlib import metadata

    found = {}
    for name in ("shoal", "ray", "torch"):
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
    """How long a reverse lookup takes; libraries make them for every connection."""

    def look() -> None:
        with suppress(OSError):
            socket.gethostbyaddr(address)

    began = time.monotonic()
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(LOOKUP_S)
    return round(time.monotonic() - began, 3)


def gpus() -> dict[str, Any]:
    cards = Path("/sys/bus/pci/devices")
    vendors = (
        [_read(d / "vendor") for d in cards.iterdir() if _read(d / "class")[:4] == "0x03"] if cards.is_dir() else []
    )
    facts: dict[str, Any] = {"nvidia_cards": vendors.count("0x10de"), "gpus": [], "gpu_error": None, "rocm": 0}
    nodes = Path("/sys/class/kfd/kfd/topology/nodes")
    if nodes.is_dir():
        facts["rocm"] = sum("simd_count 0\n" not in (n / "properties").read_text() for n in nodes.iterdir())
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=index,name,driver_version", "--format=csv,noheader"]
        done = subprocess.run(query, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30, check=False)
        text = done.stdout.decode(errors="replace").strip()
        if done.returncode == 0:
            facts["gpus"] = [[part.strip() for part in line.split(",")] for line in text.splitlines()]
        else:
            facts["gpu_error"] = text.splitlines()[0] if text else "nvidia-smi failed"
    return facts


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text().strip()
    return ""
