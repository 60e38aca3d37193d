"""Probe of a machine: data, GPUs, disk and network. Sent over ssh and run there, so it imports the standard library only."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
from typing import Any

_FREE_MIB = 512
"""MiB in use below which a GPU counts as free."""
_ANSWER = "shoal-probe "
_SIOCGIFADDR = 0x8915


def examine(asked: dict[str, Any]) -> dict[str, Any]:
    """Probe this machine. `asked` has cwd, paths (relative ones start at cwd), and gpus (whether to list GPUs)."""
    cwd = asked["cwd"]
    return {
        "cwd": os.path.isdir(cwd),  # noqa: PTH112
        "missing": [p for p in asked["paths"] if not os.path.exists(os.path.join(cwd, os.path.expanduser(p)))],  # noqa: PTH110, PTH111, PTH118
        "has_shoal": importlib.util.find_spec("shoal") is not None,
        "gpus": gpus() if asked["gpus"] else {},
        "free_bytes": _free_bytes(cwd),
        "interfaces": interfaces(),
        "port": free_port(),
    }


def gpus() -> dict[str, int]:
    """Return GPU number (as text) → MiB in use; empty without GPUs."""
    query = ["nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    rows = [line.split(",") for line in output.splitlines() if line.count(",") == 1]
    return {number.strip(): int(used) for number, used in rows if used.strip().isdigit()}


def free_gpus(found: dict[str, int]) -> list[int]:
    """Return the numbers of the GPUs that are hardly used, from the result of `gpus`."""
    return sorted(int(number) for number, used in found.items() if used < _FREE_MIB)


def interfaces() -> dict[str, str]:
    """Return network interface → IPv4 address."""
    import fcntl

    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name[:15].encode()))
                found[name] = socket.inet_ntoa(answer[20:24])
    return found


def answer_in(output: str) -> dict[str, Any] | None:
    """Return the result of `examine` from the output of a remote shell, which may print other lines; None if there is none."""
    lines = [line for line in output.splitlines() if line.startswith(_ANSWER)]
    return dict(json.loads(lines[-1][len(_ANSWER) :])) if lines else None


def _free_bytes(path: str) -> int:
    while not os.path.isdir(path) and path != "/":  # noqa: PTH112
        path = os.path.dirname(path)  # noqa: PTH120
    return shutil.disk_usage(path or "/").free


def free_port() -> int:
    """Return a free port below the range of outgoing connections, as shoal.core.ports does."""
    while True:
        port = 20000 + int.from_bytes(os.urandom(4), "big") % 12700
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port


if __name__ == "__main__":
    print(_ANSWER + json.dumps(examine(json.loads(sys.argv[1]))), flush=True)
