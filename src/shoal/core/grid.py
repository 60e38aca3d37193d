"""All combinations of some values, in the order people expect: the first name changes slowest, names that go together fastest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from shoal.core.errors import UsageError

Column = tuple[str, Sequence[Any], str | None]
"""Name, values, and the group of names it goes hand in hand with."""


def axes(columns: Iterable[Column]) -> list[list[dict[str, Any]]]:
    """What is to be combined: one axis for each name alone, then one for each group."""
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
        told = ", ".join(f"{name} has {len(values)}" for name, values in members)
        raise UsageError(
            f"the ranges of group {group!r} go hand in hand, but {told} values",
            hint="give them the same number of values",
        )
    names = [name for name, _ in members]
    return [dict(zip(names, row, strict=True)) for row in zip(*(values for _, values in members), strict=True)]
