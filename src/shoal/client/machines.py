"""Machines of the pool, their free slots and their accelerators."""

from __future__ import annotations

from shoal.client._noun import Noun
from shoal.core.jobs import CapacityView, DeviceRecordView


class Machines(Noun):
    def capacity(self) -> CapacityView:
        return self._http.fetch(CapacityView, "/machines")

    def device_history(self, machine: str | None = None) -> list[DeviceRecordView]:
        """Return what was known of the accelerators and when, the newest first."""
        wanted = {} if machine is None else {"machine": machine}
        return self._http.fetch(list[DeviceRecordView], "/machines/device-history", **wanted)
