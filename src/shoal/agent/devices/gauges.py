"""Gauges of GPUs: use, memory, power, temperature, clocks, ECC errors, throttling and NVLink, by NVML, nvidia-smi or sysfs.

A gauge is a dict with the keys of `KEYS`, `uuid`, `i` (its number in PCI order) and, for a MIG slice, `part`; what a device does not
tell is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.agent.devices import sysfs

Gauge = dict[str, Any]
KEYS = {
    "util": "share of the time in which it computed, in percent",
    "mem": "bytes of its memory in use",
    "mem_total": "bytes of its memory",
    "watts": "power",
    "watts_max": "power limit",
    "celsius": "temperature",
    "mhz": "clock of its processors",
    "mhz_max": "highest clock of its processors",
    "ecc": "uncorrectable ECC errors since the last reset",
    "throttled": "1 while heat or the power supply slows it down, else 0",
    "nvlinks": "active NVLink connections",
    "nvlink_errors": "errors of its NVLink connections since the last reset",
    "xid": "number of the NVIDIA driver's last error report about it (Xid) while the job ran",
}
SMI_FIELDS = ("index", "utilization.gpu", "memory.used", "memory.total", "power.draw", "temperature.gpu", "uuid",
              "enforced.power.limit", "clocks.sm", "clocks.max.sm", "ecc.errors.uncorrected.volatile.total",
              "clocks_throttle_reasons.active")  # fmt: skip
_SLOWED = 0x8 | 0x20 | 0x40 | 0x80
"""Throttle reasons that mean trouble: hardware slowdown, heat (software and hardware), power brake. A power cap is normal."""
_MOST_LINKS = 36
_LINK_ERRORS = (0, 1, 2, 3)
"""NVLink's counters of replays, recoveries, and checksum errors of flits and data."""


def by_nvml(nvml: Any, *, links: bool = False) -> Iterator[Gauge]:
    """Yield a gauge for each GPU and MIG slice. `links`: also ask for NVLink, which takes many calls."""
    for index in range(nvml.nvmlDeviceGetCount()):
        with suppress(nvml.NVMLError):  # a lost GPU tells nothing; the inventory names it
            yield from _gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index), index, links)


def _gpu(nvml: Any, handle: Any, index: int, links: bool) -> Iterator[Gauge]:
    def query(name: str, *more: Any, per: float = 1.0) -> float | None:
        with suppress(nvml.NVMLError, AttributeError):
            return float(getattr(nvml, name)(handle, *more)) / per
        return None

    gauge: Gauge = {"i": index, "uuid": _text(nvml.nvmlDeviceGetUUID(handle)), **_memory(nvml, handle)}
    with suppress(nvml.NVMLError):
        gauge["util"] = float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    reasons = query("nvmlDeviceGetCurrentClocksThrottleReasons")
    values = {
        "watts": query("nvmlDeviceGetPowerUsage", per=1000),
        "watts_max": query("nvmlDeviceGetEnforcedPowerLimit", per=1000),
        "celsius": query("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        "mhz": query("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        "mhz_max": query("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        "ecc": query("nvmlDeviceGetTotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC),
        "throttled": None if reasons is None else float(bool(int(reasons) & _SLOWED)),
    }
    gauge |= {key: value for key, value in values.items() if value is not None}
    if links:
        gauge |= _links(nvml, handle)
    yield gauge
    yield from _slices(nvml, handle, gauge)


def _links(nvml: Any, handle: Any) -> Gauge:
    active = errors = 0
    for link in range(_MOST_LINKS):
        try:
            state = nvml.nvmlDeviceGetNvLinkState(handle, link)
        except nvml.NVMLError:  # not supported: this model has no further links
            return {"nvlinks": float(active), "nvlink_errors": float(errors)} if link else {}
        active += bool(state)
        for counter in _LINK_ERRORS if state else ():
            with suppress(nvml.NVMLError):
                errors += int(nvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, counter))
    return {"nvlinks": float(active), "nvlink_errors": float(errors)}


def _slices(nvml: Any, handle: Any, whole: Gauge) -> Iterator[Gauge]:
    """Yield the MIG slices of a GPU. They have memory of their own; use is not measured for them."""
    shared: Gauge = {key: whole[key] for key in ("i", "watts", "watts_max", "celsius", "mhz", "mhz_max", "ecc", "throttled")
              if key in whole}  # fmt: skip
    with suppress(nvml.NVMLError):
        for part in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle) if nvml.nvmlDeviceGetMigMode(handle)[0] else 0):
            with suppress(nvml.NVMLError):
                piece = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, part)
                yield {**shared, "part": part, "uuid": _text(nvml.nvmlDeviceGetUUID(piece)), **_memory(nvml, piece)}


def _memory(nvml: Any, handle: Any) -> Gauge:
    with suppress(nvml.NVMLError):
        found = nvml.nvmlDeviceGetMemoryInfo(handle)
        return {"mem": float(found.used), "mem_total": float(found.total)}
    return {}


def parse_smi(text: str) -> list[Gauge]:
    """Return the gauges in nvidia-smi's CSV output of SMI_FIELDS."""
    found = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) != len(SMI_FIELDS) or not words[0].isdigit():
            continue
        index, util, used, total, watts, celsius, uuid, limit, mhz, mhz_max, ecc, reasons = words
        values = {
            "util": _number(util),
            "mem": _number(used, 2**20),
            "mem_total": _number(total, 2**20),
            "watts": _number(watts),
            "watts_max": _number(limit),
            "celsius": _number(celsius),
            "mhz": _number(mhz),
            "mhz_max": _number(mhz_max),
            "ecc": _number(ecc),
        }
        with suppress(ValueError):
            values["throttled"] = float(bool(int(reasons, 16) & _SLOWED))
        known = {key: value for key, value in values.items() if value is not None}
        found.append({"i": int(index), "uuid": uuid, **known})
    return found


def by_sysfs(root: Path) -> Iterator[Gauge]:
    """Yield a gauge for each AMD GPU, as the kernel's files show it."""
    for device in sysfs.amd(root):
        if isinstance(device, str) or not device.pci:
            continue
        folder = root / "sys/bus/pci/devices" / device.pci
        sensors = next(iter(sorted(folder.glob("hwmon/hwmon*"))), folder)
        power = [_file(sensors / name, 1e6) for name in ("power1_average", "power1_input")]
        values = {
            "util": _file(folder / "gpu_busy_percent"),
            "mem": _file(folder / "mem_info_vram_used"),
            "mem_total": _file(folder / "mem_info_vram_total"),
            "watts": power[0] if power[0] is not None else power[1],
            "watts_max": _file(sensors / "power1_cap", 1e6),
            "celsius": _file(sensors / "temp1_input", 1e3),
            "mhz": _file(sensors / "freq1_input", 1e6),
            "ecc": sysfs.ras_errors(root, device.pci),
        }
        known = {key: value for key, value in values.items() if value is not None}
        yield {"i": device.index, "uuid": device.uuid or device.pci, **known}


def _number(text: str, factor: float = 1.0) -> float | None:
    with suppress(ValueError):
        return float(text) * factor
    return None


def _file(path: Path, per: float = 1.0) -> float | None:
    with suppress(OSError, ValueError):
        return float(path.read_text().strip()) / per
    return None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
