"""Averages of several senders' parts of one chunk, and detection of outliers.

A minority cannot steer `robust`: outliers are left out (parts far too long, far too short for the samples claimed, or contradicted
by most of the others), long parts are scaled down to a common length, and the rest is averaged by CenteredClip, started from
the coordinate median. All functions are pure: they are safe in any thread or process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

torch: Any = import_module("torch")

LONG = 2.0
"""Maximum length of a part as a multiple of the median. A peer with twice the local steps reaches it."""
HEAVY = 3.0
"""Maximum weight of a sender as a multiple of the median. Weights are claims that nobody can check."""
ODD = 10.0
"""Length as a multiple of the median from which a part is an outlier. Honest peers of different speed stay below it."""
_STEPS = 2
_WIDE = 1.5


def mean(parts: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return the weighted mean, as hivemind computes it."""
    total = sum(weights)
    average: Tensor = torch.zeros_like(parts[0], dtype=torch.float32)
    for part, weight in zip(parts, weights, strict=True):
        average.add_(part, alpha=weight / total)
    return average


def robust(parts: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return an average that a minority cannot steer. Of two parts the longer is scaled to the shorter before averaging."""
    if len(parts) == 1:
        return parts[0].float()
    rows = shorten(_rows(parts), LONG if len(parts) > 2 else 1.0)
    counts = torch.tensor(limit_weights(weights))
    odd = odd_ones(parts, weights)
    if 2 * sum(odd) < len(parts):
        kept = torch.tensor([not one for one in odd])
        rows, counts = rows[kept], counts[kept]
    return centered_clip(rows, counts).reshape(parts[0].shape)


def centered_clip(rows: Tensor, weights: Tensor) -> Tensor:
    """Return the CenteredClip average (Karimireddy et al. 2021). The radius follows the median distance: nothing to tune."""
    center, shares = median(rows), (weights / weights.sum()).unsqueeze(1)
    for _ in range(_STEPS):
        away = rows - center
        distances = away.norm(dim=1, keepdim=True)
        radius = _WIDE * middle(distances.flatten().tolist())
        if radius == 0.0:
            break
        center = center + (away * (radius / distances.clamp_min(radius)) * shares).sum(dim=0)
    return center


def median(rows: Tensor) -> Tensor:
    """Return the median of each coordinate; for an even count, the mean of the two middle values."""
    ordered, count = rows.sort(dim=0).values, len(rows)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def shorten(rows: Tensor, times: float) -> Tensor:
    """Scale down rows longer than `times` the median length (of two rows: the shorter length)."""
    norms = rows.norm(dim=1, keepdim=True)
    known = norms.flatten().tolist()
    longest = times * (middle(known) if len(known) > 2 else min(known))
    shorter: Tensor = rows * (longest / norms.clamp_min(max(longest, torch.finfo(rows.dtype).tiny))).clamp_max(1.0)
    return shorter


def shorten_parts(parts: Sequence[Tensor], times: float) -> list[Tensor]:
    """Return the parts, scaled down as `shorten` does with rows."""
    return [row.reshape(part.shape) for row, part in zip(shorten(_rows(parts), times), parts, strict=True)]


def contradicted(rows: Tensor) -> list[bool]:
    """Return, for each row, whether most of the others contradict it: its median cosine with them is clearly negative.

    The median keeps a minority from raising its own value by agreeing with itself. A margin below zero is needed because the
    cosines of pure noise are negative half of the time.
    """
    count, size = rows.shape
    units = rows / rows.norm(dim=1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
    cosines = (units @ units.T).tolist()
    doubt = -2.0 / math.sqrt(size)
    found = [middle(line[:i] + line[i + 1 :]) < doubt for i, line in enumerate(cosines)]
    return found if 2 * sum(found) < count else [False] * count


def odd_ones(parts: Sequence[Tensor], weights: Sequence[float] | None = None) -> list[bool]:
    """Return, for each part, whether to report it as an outlier.

    Outliers are far too long, far too short for the samples claimed with them (`weights`), or contradicted by most others.
    """
    if len(parts) < 3:
        return [False] * len(parts)
    rows = _rows(parts)
    norms = rows.norm(dim=1).tolist()
    usual = middle(norms)
    against = contradicted(rows)
    shares = _shares(weights or [1.0] * len(parts))
    short = [ODD * norm < usual * share for norm, share in zip(norms, shares, strict=True)]
    return [0.0 < ODD * usual < n or few or away for n, few, away in zip(norms, short, against, strict=True)]


def limit_weights(weights: Sequence[float]) -> list[float]:
    """Return the weights, limited to HEAVY times the median."""
    most = HEAVY * middle(list(weights))
    return [min(weight, most) for weight in weights]


def _shares(weights: Sequence[float]) -> list[float]:
    """Return each weight as a share of the median, at most 1. A slow peer's part may be as much shorter."""
    usual = middle(list(weights))
    return [min(1.0, weight / usual) for weight in weights]


def middle(values: list[float]) -> float:
    """Return the median of the values."""
    ordered, count = sorted(values), len(values)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def _rows(parts: Sequence[Tensor]) -> Tensor:
    rows: Tensor = torch.stack([part.detach().reshape(-1).float() for part in parts])
    return rows
