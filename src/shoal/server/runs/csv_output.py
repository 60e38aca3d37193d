"""Runs as CSV, for spreadsheets and scripts."""

from __future__ import annotations

import csv
import io
from typing import Any

from shoal.core.runs import RunsPage

_FIXED = ("id", "name", "title", "kind", "status", "user", "tags", "starred", "created_at", "duration_s")
_SPREAD = ("mean", "std", "min", "max", "count")


def write(page: RunsPage, group: list[str]) -> str:
    """Return a page of runs, or of groups, as CSV with a head."""
    made = io.StringIO()
    writer = csv.writer(made, lineterminator="\n")
    if group:
        keys = list(dict.fromkeys(name for g in page.groups for name in g.key))
        writer.writerow([*keys, "runs", *(f"{name} {part}" for name in page.columns for part in _SPREAD)])
        for g in page.groups:
            spreads = [getattr(g.values[name], part) for name in page.columns for part in _SPREAD]
            writer.writerow(map(_cell, [*(g.key.get(name) for name in keys), g.runs, *spreads]))
        return made.getvalue()
    writer.writerow([*_FIXED, *page.columns])
    for row in page.rows:
        told = row.model_dump(mode="json")
        fixed = [" ".join(told[name]) if name == "tags" else told[name] for name in _FIXED]
        writer.writerow(map(_cell, [*fixed, *(row.values.get(name) for name in page.columns)]))
    return made.getvalue()


def _cell(value: Any) -> Any:
    """Return a value that no spreadsheet takes for a formula."""
    is_formula = isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r")
    return f"'{value}" if is_formula else "" if value is None else value
