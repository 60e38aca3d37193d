"""Error reports of the NVIDIA driver (Xid): by NVML's events, or else from the kernel's log. Used by the reader of a machine only."""

from __future__ import annotations

import os
import re
import select
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

DOUBLE_BIT = 48
"""Xid of an uncorrectable memory error, which NVML also reports as an event of its own."""
_LINE = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")
_KERNEL_LOG = "dev/kmsg"


class Xids(Protocol):
    """A source of Xids."""

    def wait(self, timeout_s: float) -> list[tuple[str, int]]:
        """Return new reports as (UUID, Xid); an empty list after `timeout_s` without any."""


def open_xids(nvml: Any, root: Path) -> Xids:
    """Return the best source that this process may use; one that never reports if there is none."""
    with suppress(Exception):  # an old driver, or no rights: the kernel's log is tried next
        return NvmlEvents(nvml)
    with suppress(OSError):
        return KernelLog(root / _KERNEL_LOG, _addresses(nvml))
    return NoXids()


class NvmlEvents:
    """Events of all GPUs of this machine that NVML can report."""

    def __init__(self, nvml: Any):
        """Register for the events; raise an error if NVML offers none of them."""
        self._nvml, self._set = nvml, nvml.nvmlEventSetCreate()
        wanted, count = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError, 0
        for index in range(nvml.nvmlDeviceGetCount()):
            with suppress(nvml.NVMLError):  # a lost GPU, or one without events
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                types = nvml.nvmlDeviceGetSupportedEventTypes(handle) & wanted
                if types:
                    nvml.nvmlDeviceRegisterEvents(handle, types, self._set)
                    count += 1
        if not count:
            raise OSError("no GPU reports events")

    def wait(self, timeout_s: float) -> list[tuple[str, int]]:
        nvml, found = self._nvml, list[tuple[str, int]]()
        deadline = time.monotonic() + timeout_s
        while not found or time.monotonic() < deadline:
            left_ms = 0 if found else max(0, int(1000 * (deadline - time.monotonic())))
            try:
                event = nvml.nvmlEventSetWait_v2(self._set, left_ms)
                is_ecc = event.eventType == nvml.nvmlEventTypeDoubleBitEccError
                uuid = _text(nvml.nvmlDeviceGetUUID(event.device))
                found.append((uuid, DOUBLE_BIT if is_ecc else int(event.eventData)))
            except nvml.NVMLError as error:
                if error.value != nvml.NVML_ERROR_TIMEOUT:  # a lost GPU: the inventory names it
                    time.sleep(max(0.0, deadline - time.monotonic()))
                break
        return found


class KernelLog:
    """Lines of the driver in the kernel's log that are written from now on."""

    def __init__(self, file: Path, uuids: Mapping[str, str]):
        """Open the log at its end; raise OSError if this user may not read it. `uuids`: PCI address → UUID."""
        self._uuids = uuids
        self._fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(self._fd, 0, os.SEEK_END)

    def wait(self, timeout_s: float) -> list[tuple[str, int]]:
        deadline, found = time.monotonic() + timeout_s, list[tuple[str, int]]()
        while not found and (left := deadline - time.monotonic()) > 0:
            select.select([self._fd], [], [], left)
            try:
                text = os.read(self._fd, 8192)  # one record per call
            except (BlockingIOError, BrokenPipeError):  # nothing yet; or records were overwritten before we read them
                continue
            if not text:  # a plain file, as in tests: look again in a moment
                time.sleep(min(0.05, left))
            lines = parse_kernel_log(text.decode(errors="replace"))
            found += [(self._uuids[pci], xid) for pci, xid in lines if pci in self._uuids]
        return found


class NoXids:
    """No source of Xids: waits, and reports nothing."""

    def wait(self, timeout_s: float) -> list[tuple[str, int]]:
        time.sleep(timeout_s)
        return []


def parse_kernel_log(text: str) -> list[tuple[str, int]]:
    """Return (PCI address, Xid) of each report of the driver in lines of the kernel's log."""
    return [(_address(pci), int(xid)) for pci, xid in _LINE.findall(text)]


def _address(pci: str) -> str:
    """Return a PCI address in one form: the log leaves out the function, and sometimes the domain; NVML's domain is longer."""
    parts = pci.lower().split(":")
    domain = parts[0][-4:].rjust(4, "0") if len(parts) == 3 else "0000"
    place = ":".join(parts[-2:])
    return f"{domain}:{place}" + ("" if "." in place else ".0")


def _addresses(nvml: Any) -> dict[str, str]:
    """Return PCI address → UUID of the GPUs that answer."""
    found = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        with suppress(nvml.NVMLError):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            pci = _text(nvml.nvmlDeviceGetPciInfo(handle).busId)
            found[_address(pci)] = _text(nvml.nvmlDeviceGetUUID(handle))
    return found


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
