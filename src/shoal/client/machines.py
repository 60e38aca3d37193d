"""What the pool could run, now and at best."""

from __future__ import annotations

from shoal.client._noun import Noun
from shoal.core.jobs import CapacityView


class Machines(Noun):
    def capacity(self) -> CapacityView:
        return self._http.fetch(CapacityView, "/machines")
