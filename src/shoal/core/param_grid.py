"""All combinations of parameter values, in the expected order: the first name changes slowest, grouped names change fastest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from shoal.core.errors import UsageError

Column = tuple[str, Sequence[Any], str | None]
"""Name, values, and the group (or None). Names of one group are varied together: the first values, then the second, …"""


def axes(columns: Iterable[Column]) -> list[list[dict[str, Any]]]:
    """Return the axes to combine: one for each name without a group, then one for each group."""
    single: list[list[dict[str, Any]]] = []
    groups: dict[str, list[tuple[str, Sequence[Any]]]] = {}
    for name, values, group in columns:
        if group is None:
            single.append([{name: value} for value in values])
        else:
            groups.setdefault(group, []).append((name, values))
    return single + [_together(group, members) for group, members in groups.items()]


def _together(group: str, members: list[tuple[str, Sequence[Any]]]) -> list[dict[str, Any]]:
    if len({len(values) for _, values in members}) > 1:
        counts = ", ".join(f"{name} has {len(values)}" for name, values in members)
        raise UsageError(
            f"the ranges of group {group!r} are varied together and need equally many values, but {counts}",
            hint="Give each the same number of values.",
        )
    names = [name for name, _ in members]
    return [dict(zip(names, row, strict=True)) for row in zip(*(values for _, values in members), strict=True)]
