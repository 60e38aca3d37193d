"""Comparison of the trials of a sweep while they run, and the reason shown for those that are ended early."""

from __future__ import annotations

from shoal.core.sweeps import SweepSpec
from shoal.tune.prune import Loss, RungResults, Rungs

BRACKETS = {"asha": 1, "hyperband": 4}
"""Search → number of brackets. Trials of each bracket are first compared `factor` times later than those of the one before."""


def board_for(spec: SweepSpec) -> RungResults | None:
    """Return the board that compares the trials; None if the search never ends trials early."""
    if spec.search not in BRACKETS:
        return None
    return RungResults(Rungs(spec.first_rung, spec.factor), spec.direction, BRACKETS[spec.search])


def loss_text(loss: Loss, spec: SweepSpec) -> str:
    """Return the reason to show, such as `pruned: 0.41 after 3 reports, the best third had ≤ 0.32`."""
    share = {2: "half", 3: "third", 4: "quarter"}.get(spec.factor, f"1 in {spec.factor}")
    sign = "≤" if spec.direction == "min" else "≥"
    times = f"{loss.reports} report{'s' if loss.reports > 1 else ''}"
    return f"pruned: {loss.best:.4g} after {times}, the best {share} had {sign} {loss.needed:.4g}"
