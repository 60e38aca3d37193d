"""The retention rule: which checkpoints of a job are kept. A pure function; the server deletes the others."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from shoal.core.schema import Schema


class Retention(Schema):
    """Number of checkpoints of a job to keep. At least one complete checkpoint is always kept."""

    keep_last: int | None = Field(default=None, ge=1)
    keep_best: str | None = None
    """Name of the metric whose best checkpoint is kept. Smaller is better; with the prefix '-', larger is better."""

    def chosen(self, rows: list[dict[str, Any]]) -> set[str]:
        """Return the ids of the checkpoints to keep. `rows` (oldest first) have id, name, metrics and kept. A pure function."""
        if self.keep_last is None and self.keep_best is None:
            return {row["id"] for row in rows}
        stay = {row["id"] for row in rows if row["kept"]}
        stay |= {row["id"] for row in rows[-(self.keep_last or 1) :]}
        if self.keep_best is not None:
            sign, metric = (-1, self.keep_best[1:]) if self.keep_best.startswith("-") else (1, self.keep_best)
            scored = [row for row in rows if metric in row["metrics"]]
            stay |= {row["id"] for row in sorted(scored, key=lambda r: sign * r["metrics"][metric])[:1]}
        return stay
