"""From the lines of a spool to points by series. What is malformed is left out: one bad line must not hold up the rest."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from shoal.core.metrics import Record
from shoal.server.metrics.columns import number

KINDS = {"s": "step", "e": "eval"}
KEPT = frozenset("dlhcfw")
"""Kinds of records that are kept as they are."""
MAX_NAME = 500
MAX_TEXT = 1000
_MAX_STEP = 1 << 53
_MAX_TIME = 1e12
_PLAIN = {float, int}


Columns = tuple[list[int], list[float], list[Any]]
"""Steps, times, values."""


@dataclass(slots=True)
class Intake:
    series: dict[tuple[str, str], Columns] = field(default_factory=dict)
    """(kind, name) → its points."""
    others: list[Record] = field(default_factory=list)
    heads: dict[int, int] = field(default_factory=dict)
    """Rank → the line to come next."""
    points: dict[str, dict[str, Columns]] = field(default_factory=lambda: {kind: {} for kind in KINDS})
    """The same by k and name while it is being gathered, values not yet checked."""

    @property
    def is_empty(self) -> bool:
        return not self.series and not self.others


def decode_lines(plain: bytes) -> list[Any]:
    """One value a line; None for lines that are no JSON."""
    lines = [line for line in plain.split(b"\n") if line]
    try:
        values: list[Any] = json.loads(b"[" + b",".join(lines) + b"]", parse_constant=_no_constant)
        if len(values) == len(lines):
            return values
    except (ValueError, RecursionError):
        pass
    return [_decode(line) for line in lines]


def take(records: Iterable[Any], heads: dict[int, int]) -> Intake:
    """Sort out what is new. Lines below their rank's head came before, and are skipped."""
    made = Intake(heads=dict(heads))
    for record in records:
        if not isinstance(record, dict):
            continue
        kind, rank, line = record.get("k"), record.get("rank", 0), record.get("q")
        if type(line) is int and type(rank) is int:
            if line < made.heads.get(rank, 0):
                continue
            made.heads[rank] = line + 1
        if kind in KINDS:
            # Numbers of other ranks than the first would be as many curves of one name.
            if rank == 0:
                _take_point(made.points[kind], record)
        elif kind in KEPT:
            made.others.append({k: v for k, v in record.items() if k not in ("s", "q")})
    for kind, points in made.points.items():
        for name, columns in points.items():
            if not set(map(type, columns[2])) <= _PLAIN:
                columns = _tidy(kind, columns)
            if columns[0]:
                made.series[KINDS[kind], name] = columns
    return made


def _take_point(series: dict[str, Columns], record: Record) -> None:
    step, at, values = record.get("i"), record.get("t"), record.get("v")
    if type(step) is not int or not -_MAX_STEP < step < _MAX_STEP or not isinstance(values, dict):
        return
    if not isinstance(at, float | int) or not 0 <= at < _MAX_TIME:
        return
    for name, value in values.items():
        columns = series.get(name)
        if columns is None:
            if not 0 < len(name) <= MAX_NAME:
                continue
            columns = series[name] = ([], [], [])
        columns[0].append(step)
        columns[1].append(at)
        columns[2].append(value)


def _tidy(kind: str, columns: Columns) -> Columns:
    """Something among the values is no plain number."""
    rows = [(s, t, _short(number(v))) for s, t, v in zip(*columns, strict=True)]
    good = [row for row in rows if row[2] is not None and (kind == "e" or not isinstance(row[2], str))]
    return [r[0] for r in good], [r[1] for r in good], [r[2] for r in good]


def _short(value: Any) -> Any:
    return value[:MAX_TEXT] if isinstance(value, str) else value


def _decode(line: bytes) -> Any:
    try:
        return json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None


def _no_constant(name: str) -> Any:
    """NaN and Infinity, which JSON does not know, as others write them."""
    return {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}[name]
