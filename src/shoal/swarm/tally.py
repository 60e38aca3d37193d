"""What this peer has done in the present round and the one before, in the numbers that others are told."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


class Tally:
    def __init__(self) -> None:
        self.samples = 0
        """Of the present round."""
        self._losses, self._steps = 0.0, 0
        self._is_stale = False
        self._total = 0
        self._bytes_in = self._bytes_out = 0
        self._last: dict[str, Any] = {"averaged": 1.0}
        self.mean_loss: float | None = None
        """Of the last round."""

    @property
    def receipt(self) -> Mapping[str, Any]:
        """Of the last round."""
        return self._last

    def add(self, samples: int) -> None:
        self.samples += samples
        self._total += samples

    def note(self, loss: float) -> None:
        if self._is_stale:
            self._is_stale = False
            return
        self._losses += loss
        self._steps += 1

    def drop(self) -> None:
        """The round was in vain, here."""
        self.samples, self._losses, self._steps = 0, 0.0, 0

    def forget(self) -> None:
        """Another model was taken over: the next loss is still of the one before."""
        self.drop()
        self._is_stale = True

    def close(self, receipt: Mapping[str, Any] | None, seconds: float) -> None:
        """The round is over: its sums stay to be told until the next one is."""
        found = receipt or {}
        self._bytes_in += int(found.get("bytes_in", 0))
        self._bytes_out += int(found.get("bytes_out", 0))
        mean = self._losses / self._steps if self._steps else math.nan
        self.mean_loss = mean if math.isfinite(mean) else self.mean_loss
        self._last = {
            "samples": self.samples,
            "loss": self._losses,
            "mini_steps": self._steps,
            "averaged": float(found.get("averaged", 1.0)),
            "round_s": seconds,
            "members": list(found.get("members", []))[:256],
            "odd": sorted({*found.get("odd", []), *found.get("refused", {})})[:256],
        }
        self.drop()

    def told(self) -> dict[str, Any]:
        return {**self._last, "total_samples": self._total, "bytes_in": self._bytes_in, "bytes_out": self._bytes_out}
