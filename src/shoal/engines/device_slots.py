"""Slots of this machine and the accelerator of each, read again every 30 seconds.

Why it is safe: `_slots` and `_problems` are tuples that are replaced as a whole, so readers see a reading before or after a
change. At most one thread reads at a time (`_reading`); it is a daemon that ends after one reading, and no reading takes longer
than its limit. A slot keeps its number while the server runs: a device that disappears stays as an unusable slot, and a
new one gets the next number, so that running jobs keep theirs.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shoal.agent.devices import inventory
from shoal.agent.devices.device import Device, Inventory

logger = logging.getLogger(__name__)
EVERY_S = 30.0
LATER_TIMEOUT_S = 60.0
"""Time limit of readings after the first one, for which nobody waits."""
GONE = "its driver no longer shows it"


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots of a machine as of one reading."""

    kind: str
    count: int
    devices: tuple[Device, ...] = ()
    """The accelerator of each slot; empty if the slots are shares of the CPU."""
    problems: tuple[str, ...] = ()
    gauges: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """UUID → measured values of a device."""


class DeviceSlots:
    """Reads the accelerators of this machine at the start and then in the background."""

    def __init__(
        self,
        setting: int | None = None,
        *,
        take: Callable[[float], Inventory] | None = None,
        order_file: Path | None = None,
        keep_order: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Read once. `setting` limits the number of slots; 0 means none.

        `order_file` holds the devices in the order of their slots. `keep_order`: agents of an earlier server still run, so
        their slots must keep their numbers.
        """
        self._setting, self._clock, self._order_file = setting, clock, order_file
        self._take = take or (lambda limit_s: inventory.scan(timeout_s=limit_s))
        self._reading = threading.Lock()
        found = self._take(inventory.TIMEOUT_S)
        self._kind = found.kind
        known = self._remembered() if keep_order else []
        self._now = self._slots_of(merged(known, found, self._kind), found)
        self._read_at = clock()
        self._remember()

    def now(self) -> Slots:
        """Return the slots as last read; start a new reading in the background if that was long ago."""
        if self._clock() - self._read_at >= EVERY_S and self._reading.acquire(blocking=False):
            self._read_at = self._clock()
            threading.Thread(target=self._read_again, name="devices", daemon=True).start()
        return self._now

    def _read_again(self) -> None:
        try:
            found = self._take(LATER_TIMEOUT_S)
            before, self._now = self._now, self._slots_of(merged(self._now.devices, found, self._kind), found)
            for line in set(self._now.problems) - set(before.problems):
                logger.warning("%s", line)
            self._remember()
        except Exception:
            logger.exception("the accelerators of this machine could not be read")
        finally:
            self._reading.release()

    def _slots_of(self, devices: Sequence[Device], found: Inventory) -> Slots:
        problems = list(found.problems)
        if found.kind != self._kind and found.offered:
            problems.append(f"{len(found.offered)} {found.kind} devices have appeared; restart the server to use them")
        if self._kind == "cpu":
            share = max(1, (os.cpu_count() or 1) // 2)
            return Slots("cpu", share if self._setting is None else self._setting, problems=tuple(problems))
        if self._setting is not None:
            # Healthy ones first, but in the order of their numbers.
            chosen = set(sorted(range(len(devices)), key=lambda i: bool(devices[i].problem))[: self._setting])
            devices = [device for i, device in enumerate(devices) if i in chosen]
        return Slots(self._kind, len(devices), tuple(devices), tuple(problems), found.gauges)

    def _remembered(self) -> list[Device]:
        with suppress(OSError, ValueError, TypeError, AttributeError):
            if self._order_file is not None:
                return [Device.from_json(one) for one in json.loads(self._order_file.read_text())]
        return []

    def _remember(self) -> None:
        devices = [device.to_json() for device in self._now.devices]
        if self._order_file is None or not (devices or self._order_file.exists()):
            return
        with suppress(OSError):  # only the numbering after a restart depends on it
            draft = self._order_file.with_suffix(".new")
            draft.write_text(json.dumps(devices))
            draft.replace(self._order_file)


def merged(known: Sequence[Device], found: Inventory, kind: str) -> list[Device]:
    """Return the devices of a new reading in the order of the slots; those that are missing are unusable. Pure."""
    new = [device for device in found.devices if device.kind == kind]
    new = list(Inventory(tuple(new)).offered)
    slots: list[Device] = []
    for device in known:
        match = next((n for n in new if _is_same(device, n)), None)
        if match is None:
            silent = "its driver does not answer" if kind in found.unread else GONE
            slots.append(replace(device, problem=silent, is_faulty=False))
        elif match.uuid or not device.uuid:
            slots.append(match)
            new.remove(match)
        else:  # a lost GPU tells only its number
            slots.append(replace(device, problem=match.problem, is_faulty=match.is_faulty))
    lost = {d.index for d in new if not d.uuid and not d.pci}
    told = {d.index for d in known if d.index in lost}
    return slots + [device for device in new if device.index not in told or device.uuid or device.pci]


def _is_same(known: Device, found: Device) -> bool:
    if (known.uuid or known.pci) and (found.uuid or found.pci):
        return known.identity == found.identity
    return known.index == found.index
