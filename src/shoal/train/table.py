"""Table of a model's parameters, largest first, with their share of the total."""

from __future__ import annotations

import math
from typing import Any

_MOST = 200
_UNITS = ((1e9, "B"), (1e6, "M"), (1e3, "K"))


def parameter_table(model: Any, most: int = _MOST) -> str:
    """Return a table with name, shape, size and share of each parameter, largest first. Shared parameters count once.

    Args:
        model: A module.
        most: Maximum number of rows.

    Example:
        >>> print(parameter_table(model))
    """
    rows = [(name, tuple(p.shape), math.prod(p.shape), bool(p.requires_grad)) for name, p in model.named_parameters()]
    rows.sort(key=lambda row: (-row[2], row[0]))
    total = sum(row[2] for row in rows)
    frozen = sum(row[2] for row in rows if not row[3])
    cells = [("PARAMETER", "SHAPE", "SIZE", "RATIO", "SUM")]
    so_far = 0
    for name, shape, size, trains in rows[:most]:
        so_far += size
        shown = "×".join(map(str, shape)) or "1"
        cells.append(
            (name if trains else f"{name} (frozen)", shown, f"{size:,}", _share(size, total), _share(so_far, total))
        )
    if len(rows) > most:
        left = sum(row[2] for row in rows[most:])
        cells.append((f"… {len(rows) - most} more", "", f"{left:,}", _share(left, total), _share(total, total)))
    widths = [max(len(row[i]) for row in cells) for i in range(5)]
    lines = [
        f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}  {e:>{widths[4]}}"
        for a, b, c, d, e in cells
    ]
    summary = f"{len(rows)} parameters, {total:,} numbers ({_short(total)})"
    return "\n".join([*lines, f"{summary}, {frozen:,} of them frozen" if frozen else summary])


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.2%}" if whole else "–"


def _short(count: int) -> str:
    return next((f"{count / size:.1f}{unit}" for size, unit in _UNITS if count >= size), str(count))
