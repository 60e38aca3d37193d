"""Display of what `shoal doctor` and `shoal server doctor` found: one line each, and below it what solves it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.cli.shared.output import out

if TYPE_CHECKING:
    from shoal.core.backups import Finding


def print_diagnosis(found: Sequence[Finding]) -> None:
    words = {"ok": "ok", "warning": "warning", "error": "ERROR"}
    width = max(len(f.name) for f in found)
    for f in found:
        out.line(f"{words[f.state]:<8} {f.name:<{width}}  {f.text}")
        if f.fix:
            out.line(f"{'':<8} {'':<{width}}  → {f.fix}")
