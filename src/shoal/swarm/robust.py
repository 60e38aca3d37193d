"""Averages of what several senders sent for one chunk, and who among them stands out. Pure: tensors in, tensors out.

`robust` cannot be steered by a minority: long parts are shortened to what is common, parts that most of the others
contradict are left out, and the rest is averaged by CenteredClip started from the coordinate median.
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
"""A part may be this many times as long as the median one; peers with twice the local steps are that long."""
HEAVY = 3.0
"""A sender's weight counts up to this many times the median weight: it is only what the sender claims."""
ODD = 10.0
"""Parts this many times as long as the median are reported as odd; honest peers of different speed are below it."""
_STEPS = 2
_WIDE = 1.5


def mean(parts: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Weighted, as hivemind averages."""
    total = sum(weights)
    average: Tensor = torch.zeros_like(parts[0], dtype=torch.float32)
    for part, weight in zip(parts, weights, strict=True):
        average.add_(part, alpha=weight / total)
    return average


def robust(parts: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Of two, who is right cannot be told: the longer is cut to the shorter, and they are averaged."""
    if len(parts) == 1:
        return parts[0].float()
    rows = shorten(_rows(parts), LONG if len(parts) > 2 else 1.0)
    counts = torch.tensor(limit_weights(weights))
    if len(parts) > 2:
        kept = torch.tensor([not against for against in contradicted(rows)])
        rows, counts = rows[kept], counts[kept]
    return centered_clip(rows, counts).reshape(parts[0].shape)


def centered_clip(rows: Tensor, weights: Tensor) -> Tensor:
    """Karimireddy et al. 2021, with the radius taken from the median distance, so that nothing needs to be tuned."""
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
    """Of each coordinate; of an even number the middle between the two in the middle."""
    ordered, count = rows.sort(dim=0).values, len(rows)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def shorten(rows: Tensor, times: float) -> Tensor:
    """Rows longer than so many times the median length (of two: the shorter) become that long."""
    norms = rows.norm(dim=1, keepdim=True)
    known = norms.flatten().tolist()
    longest = times * (middle(known) if len(known) > 2 else min(known))
    shorter: Tensor = rows * (longest / norms.clamp_min(max(longest, torch.finfo(rows.dtype).tiny))).clamp_max(1.0)
    return shorter


def shorten_parts(parts: Sequence[Tensor], times: float) -> list[Tensor]:
    return [row.reshape(part.shape) for row, part in zip(shorten(_rows(parts), times), parts, strict=True)]


def contradicted(rows: Tensor) -> list[bool]:
    """Whether most of the others point away from it: the median of its cosines with them is clearly negative.

    The median, because a minority that agrees only with itself must not lift its own; clearly, because
    the cosines of pure noise are as often below zero as above it.
    """
    count, size = rows.shape
    units = rows / rows.norm(dim=1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
    cosines = (units @ units.T).tolist()
    doubt = -2.0 / math.sqrt(size)
    found = [middle(line[:i] + line[i + 1 :]) < doubt for i, line in enumerate(cosines)]
    return found if 2 * sum(found) < count else [False] * count


def odd_ones(parts: Sequence[Tensor]) -> list[bool]:
    """Who stands out so far that a human should hear of it: far too long, or against most of the others."""
    if len(parts) < 3:
        return [False] * len(parts)
    rows = _rows(parts)
    norms = rows.norm(dim=1).tolist()
    usual = middle(norms)
    against = contradicted(rows)
    return [0.0 < ODD * usual < norm or away for norm, away in zip(norms, against, strict=True)]


def limit_weights(weights: Sequence[float]) -> list[float]:
    most = HEAVY * middle(list(weights))
    return [min(weight, most) for weight in weights]


def middle(values: list[float]) -> float:
    ordered, count = sorted(values), len(values)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def _rows(parts: Sequence[Tensor]) -> Tensor:
    rows: Tensor = torch.stack([part.detach().reshape(-1).float() for part in parts])
    return rows
