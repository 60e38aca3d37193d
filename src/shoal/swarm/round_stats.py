"""This peer's statistics of the current and the last round, as published to the others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


class RoundStats:
    """Samples, losses and bytes of this peer, by round."""

    def __init__(self) -> None:
        self.samples = 0
        """Samples of the current round."""
        self._losses, self._steps = 0.0, 0
        self._is_stale = False
        self._total = 0
        self._bytes_in = self._bytes_out = 0
        self._last: dict[str, Any] = {"averaged": 1.0}
        self.mean_loss: float | None = None
        """Mean loss of the last round that had a finite one."""

    @property
    def receipt(self) -> Mapping[str, Any]:
        """Published statistics of the last round, such as `averaged`, `members` and `odd`."""
        return self._last

    def add(self, samples: int) -> None:
        """Count the samples of one step."""
        self.samples += samples
        self._total += samples

    def note(self, loss: float) -> None:
        """Add the loss of one step; the first one after `forget` belongs to the previous model and is ignored."""
        if self._is_stale:
            self._is_stale = False
            return
        self._losses += loss
        self._steps += 1

    def drop(self) -> None:
        """Discard the current round's samples and losses."""
        self.samples, self._losses, self._steps = 0, 0.0, 0

    def forget(self) -> None:
        """Discard the current round after another model was loaded. The next loss still belongs to the previous model."""
        self.drop()
        self._is_stale = True

    def close(self, receipt: Mapping[str, Any] | None, seconds: float) -> None:
        """Finish the round. Its sums are published until the next round is finished."""
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
            "judged": bool(found.get("judged")),
            "odd": sorted({*found.get("odd", []), *found.get("refused", {})})[:256],
        }
        self.drop()

    def published(self) -> dict[str, Any]:
        """Return the fields of a Progress record."""
        return {**self._last, "total_samples": self._total, "bytes_in": self._bytes_in, "bytes_out": self._bytes_out}
