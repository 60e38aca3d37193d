"""Records of the accelerators of a machine. Pure; every reader of this package produces them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

KINDS = ("cuda", "rocm", "xpu")
"""Kinds of accelerators that jobs can be given, the preferred one first."""
_LEAST_OF_UUID = 8
"""Characters of a UUID that must be given at least, such as GPU-5a3f."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator, or one MIG slice of it."""

    kind: str
    """cuda, rocm, xpu or mps."""
    index: int
    """Its number in PCI order, as the vendor's tools show it. Slices of one GPU have the number of that GPU."""
    uuid: str = ""
    """Identity that does not change with the numbering; empty if the driver reports none."""
    minor: int | None = None
    """Number N of its device file: /dev/nvidiaN or /dev/dri/renderDN."""
    pci: str = ""
    """PCI address, such as 0000:18:00.0."""
    model: str = ""
    memory: int | None = None
    """Bytes of its own memory; None if it shares the machine's memory, or does not tell."""
    parent: str = ""
    """UUID of the GPU that this MIG slice is a part of; empty for a whole device."""
    part: int | None = None
    """Number of this MIG slice on its GPU; None for a whole device."""
    driver: str = ""
    runtime: str = ""
    """Newest version of CUDA or ROCm that the driver supports."""
    numa: int | None = None
    """NUMA node of its PCI slot; None if the machine has one node or does not tell."""
    island: int | None = None
    """Number of the group of devices it is connected to by NVLink; None without NVLink."""
    problem: str = ""
    """Why the device cannot be used; empty while it is healthy."""
    is_faulty: bool = False
    """True if its hardware has failed, so that nothing that runs on it can continue."""

    @property
    def identity(self) -> str:
        """Key of this device that is the same at every reading."""
        return self.uuid or self.pci or f"{self.kind}{self.index}"

    @property
    def label(self) -> str:
        """Name of this device for people: "GPU 3", or "GPU 0 slice 2"."""
        return f"GPU {self.index}" + (f" slice {self.part}" if self.part is not None else "")

    def is_named(self, name: int | str) -> bool:
        """Return whether a person means this device by a number, or by a UUID or its beginning. A GPU's name names its slices."""
        if isinstance(name, int):
            return self.index == name
        known = (self.uuid.lower(), self.parent.lower())
        return len(name) >= _LEAST_OF_UUID and any(uuid.startswith(name.lower()) for uuid in known)

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value not in ("", None) and value is not False}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Device:
        """Return the device of a JSON object; fields of a newer version are ignored."""
        known = {one.name for one in fields(cls)}
        return cls(**{key: value for key, value in data.items() if key in known})


@dataclass(frozen=True, slots=True)
class Inventory:
    """All accelerators of a machine at one reading, and what went wrong while reading."""

    devices: tuple[Device, ...] = ()
    problems: tuple[str, ...] = ()
    """One line for each problem, for people."""
    unread: frozenset[str] = frozenset()
    """Kinds whose driver is there but did not answer: nothing is known about their devices."""
    gauges: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """UUID (or PCI address) → measured values at this reading; see `gauges`."""
    users: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """UUID → processes that compute on the device, if its driver tells."""

    @property
    def kind(self) -> str:
        """Kind of the slots of this machine: the accelerators it has most of, or cpu."""
        counts = Counter(device.kind for device in self.devices if device.kind in KINDS)
        found = max(KINDS, key=lambda kind: (counts[kind], kind in self.unread, -KINDS.index(kind)))
        return found if counts[found] or found in self.unread else "cpu"

    @property
    def offered(self) -> tuple[Device, ...]:
        """Devices of this machine's kind, healthy or not, in PCI order."""
        return tuple(sorted((d for d in self.devices if d.kind == self.kind), key=order))

    def to_json(self) -> dict[str, Any]:
        """Return what another machine needs to know; the gauges are left out."""
        devices = [device.to_json() for device in self.devices]
        return {"devices": devices, "problems": list(self.problems), "unread": sorted(self.unread)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Inventory:
        devices = tuple(Device.from_json(one) for one in data.get("devices") or ())
        return cls(devices, tuple(data.get("problems") or ()), frozenset(data.get("unread") or ()))


def order(device: Device) -> tuple[int, int]:
    """Return the sort key of a device among those of its kind: their numbers are in PCI order."""
    return (device.index, -1 if device.part is None else device.part)
