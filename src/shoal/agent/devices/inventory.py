"""Inventory of the accelerators of this machine. Every question to a driver has a time limit.

`root` stands for the root of the file system; tests give a made-up tree.
"""

from __future__ import annotations

import json
import os
import platform
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from shoal.agent.devices.device import Device, Inventory
from shoal.agent.devices.sysfs import KFD
from shoal.agent.devices.visible import restrict

TIMEOUT_S = 10.0
"""Seconds after which a driver counts as hung. Without persistence mode the driver of an 8-GPU machine needs a few."""
_START_S = 60.0
"""Seconds that the reading process may need to start on a busy machine. No driver is involved yet."""
_ROOT = Path("/")
_NAMES = {"cuda": "NVIDIA", "rocm": "AMD", "xpu": "Intel"}


def scan(root: Path = _ROOT, env: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S) -> Inventory:
    """Return the accelerators of this machine that the site lets Shoal use. No driver is waited for longer than `timeout_s`."""
    env = os.environ if env is None else env
    kinds, problems = present(root, env)
    if not kinds:
        return Inventory(tuple(_mps()), tuple(problems))
    found = _read(root, kinds, env, timeout_s)
    kept, hidden = restrict(found.devices, env)
    return replace(found, devices=tuple(kept), problems=(*problems, *found.problems, *hidden))


def present(root: Path, env: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the kinds of which this machine may have devices, and problems that are visible without asking a driver.

    Reads a few files only, so that a machine without accelerators pays nothing.
    """
    kinds, problems = [], []
    has_driver = (root / "dev/nvidiactl").exists() or (root / "proc/driver/nvidia/version").exists()
    if has_driver or (root / "dev/dxg").exists() or shutil.which("nvidia-smi", path=env.get("PATH", "")):
        kinds.append("cuda")
    elif cards := _cards(root, "0x10de"):
        plural = "s" if cards != 1 else ""
        problems.append(f"{cards} NVIDIA card{plural}, but the driver is not loaded; jobs run on the CPU")
    if (root / KFD).is_dir():
        kinds.append("rocm")
    if _cards(root, "0x8086"):
        kinds.append("xpu")
    return kinds, problems


def _cards(root: Path, vendor: str) -> int:
    """Return how many display or compute cards of a vendor the PCI bus shows."""
    cards, count = root / "sys/bus/pci/devices", 0
    with suppress(OSError):
        for card in cards.iterdir():
            with suppress(OSError):
                is_display = (card / "class").read_text().startswith("0x03")
                count += is_display and (card / "vendor").read_text().strip() == vendor
    return count


def _read(root: Path, kinds: list[str], env: Mapping[str, str], timeout_s: float) -> Inventory:
    devices: list[Device] = []
    islands: list[list[str]] = []
    gauges: dict[str, dict[str, Any]] = {}
    users: dict[str, list[int]] = {}
    problems: list[str] = []
    reading, silent, failed = kinds[0], set(kinds), set[str]()
    with _child(root, kinds, env) as child:
        for said in _answers(child.stdout, timeout_s):
            if "reading" in said:
                reading = said["reading"]
            elif "read" in said:
                silent.discard(said["read"])
            elif "failed" in said:
                silent.discard(said["failed"])
                failed.add(said["failed"])
                problems.append(said["why"])
            elif "island" in said and "kind" not in said:
                islands.append(said["island"])
            elif "gauge" in said:
                gauges[said["gauge"]["uuid"]] = said["gauge"]
            elif "users" in said:
                users[said["uuid"]] = said["users"]
            elif "problem" in said and "kind" not in said:
                problems.append(said["problem"])
            else:
                devices.append(Device.from_json(said))
        with suppress(ProcessLookupError):
            child.kill()  # by now it has ended, or it hangs
    for kind in sorted(silent):
        read = sum(device.kind == kind for device in devices)
        after = f" after {read} device{'s' if read != 1 else ''}" if read else ""
        what = "does not answer" if kind == reading else "was not asked"
        problems.append(f"the {_NAMES[kind]} driver {what}{after} ({timeout_s:g} s)")
    member = {uuid: number for number, group in enumerate(islands) for uuid in group}
    placed = tuple(replace(d, island=member.get(d.parent or d.uuid)) for d in devices)
    return Inventory(placed, tuple(problems), frozenset(silent | failed), gauges, users)


class _child:
    """The reading process. If the kernel does not let go of it (state D), it is left to init and not waited for."""

    def __init__(self, root: Path, kinds: list[str], env: Mapping[str, str]):
        argv = [sys.executable, "-m", "shoal.agent.devices.read", str(root), *kinds]
        # The masks are applied by `restrict`: NVML ignores them, ROCm's files do not know them.
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(env),
            start_new_session=True,
        )

    def __enter__(self) -> subprocess.Popen[bytes]:
        return self._process

    def __exit__(self, *_: object) -> None:
        if self._process.stdout is not None:
            self._process.stdout.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0)


def _answers(stream: IO[bytes] | None, timeout_s: float) -> Iterator[dict[str, Any]]:
    """Yield the lines of the reading process until it ends, or until one kind of devices takes longer than the limit."""
    if stream is None:
        return
    deadline, rest = time.monotonic() + _START_S, b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0 and selector.select(left):
            data = os.read(stream.fileno(), 1 << 16)
            if not data:
                return
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                said = json.loads(line)
                if "reading" in said:
                    deadline = time.monotonic() + timeout_s
                yield said


def _mps() -> list[Device]:
    """Return the GPU of an Apple processor. It is only shown: any process can use it, so there is nothing to hand out."""
    if platform.system() != "Darwin" or platform.machine() != "arm64":
        return []
    return [Device(kind="mps", index=0, model="Apple GPU", driver=platform.mac_ver()[0])]
