"""How the trials of a sweep are compared while they run, and what is said of those that are ended for it."""

from __future__ import annotations

from shoal.core.sweeps import SweepSpec
from shoal.tune.prune import Board, Loss, Rungs

BRACKETS = {"asha": 1, "hyperband": 4}
"""Kinds of halving by search; each is first compared `factor` times later than the one before it."""


def board_for(spec: SweepSpec) -> Board | None:
    """None where every trial may go on to its end."""
    if spec.search not in BRACKETS:
        return None
    return Board(Rungs(spec.first_rung, spec.factor), spec.direction, BRACKETS[spec.search])


def loss_text(loss: Loss, spec: SweepSpec) -> str:
    """`pruned: 0.41 after 3 reports, the best third had ≤ 0.32`."""
    share = {2: "half", 3: "third", 4: "quarter"}.get(spec.factor, f"1 in {spec.factor}")
    sign = "≤" if spec.direction == "min" else "≥"
    times = f"{loss.reports} report{'s' if loss.reports > 1 else ''}"
    return f"pruned: {loss.best:.4g} after {times}, the best {share} had {sign} {loss.needed:.4g}"
