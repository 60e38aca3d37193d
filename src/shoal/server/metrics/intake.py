"""Parsing of spool lines into points by series. Malformed lines are skipped, so that they do not block the others."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from shoal.core.metrics import Record
from shoal.core.records import KEPT, SERIES, Kind
from shoal.core.schema import MOST_TIME_S, valid_text
from shoal.server.metrics.columns import number

MAX_NAME = 500
MAX_TEXT = 1000
_MAX_STEP = 1 << 53
_PLAIN = {float, int}


Columns = tuple[list[int], list[float], list[Any]]
"""Lists of steps, times and values."""


@dataclass(slots=True)
class Intake:
    """Parsed records that are new."""

    series: dict[tuple[str, str], Columns] = field(default_factory=dict)
    """(kind, name) → points."""
    others: list[Record] = field(default_factory=list)
    heads: dict[int, int] = field(default_factory=dict)
    """Rank → number of the next line expected."""
    points: dict[Kind, dict[str, Columns]] = field(default_factory=lambda: {kind: {} for kind in SERIES})
    """Points by record kind and name while they are collected; their values are not checked yet."""

    @property
    def is_empty(self) -> bool:
        return not self.series and not self.others


def decode_lines(plain: bytes) -> list[Any]:
    """Return one value per line; None for lines that are not JSON."""
    lines = [line for line in plain.split(b"\n") if line]
    if b"\\ud" in plain or b"\\uD" in plain:  # a surrogate; those of a pair are one valid character
        return [_decode(line) for line in lines]
    try:
        values: list[Any] = json.loads(b"[" + b",".join(lines) + b"]", parse_constant=_no_constant)
        if len(values) == len(lines):
            return values
    except (ValueError, RecursionError):
        pass
    return [_decode(line) for line in lines]


def select_new(records: Iterable[Any], heads: dict[int, int]) -> Intake:
    """Return the new records. Lines below their rank's head were stored before and are skipped."""
    made = Intake(heads=dict(heads))
    for record in records:
        if not isinstance(record, dict):
            continue
        kind, rank, line = record.get("k"), record.get("rank", 0), record.get("q")
        if type(line) is int and type(rank) is int:
            if line < made.heads.get(rank, 0):
                continue
            made.heads[rank] = line + 1
        if kind in SERIES:
            # Only rank 0: the other ranks would add more curves with the same name.
            if rank == 0:
                _add_point(made.points[kind], record)
        elif kind in KEPT:
            made.others.append({k: v for k, v in record.items() if k not in ("s", "q")})
    for kind, points in made.points.items():
        for name, columns in points.items():
            if not set(map(type, columns[2])) <= _PLAIN:
                columns = _tidy(kind, columns)
            if columns[0]:
                made.series[SERIES[kind], name] = columns
    return made


def _add_point(series: dict[str, Columns], record: Record) -> None:
    step, at, values = record.get("i"), record.get("t"), record.get("v")
    if type(step) is not int or not -_MAX_STEP < step < _MAX_STEP or not isinstance(values, dict):
        return
    if not isinstance(at, float | int) or not 0 <= at < MOST_TIME_S:
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
    """Return the columns without invalid values; text is allowed only for evaluations."""
    rows = [(s, t, _short(number(v))) for s, t, v in zip(*columns, strict=True)]
    good = [row for row in rows if row[2] is not None and (kind == Kind.EVALUATION or not isinstance(row[2], str))]
    return [r[0] for r in good], [r[1] for r in good], [r[2] for r in good]


def _short(value: Any) -> Any:
    return value[:MAX_TEXT] if isinstance(value, str) else value


def _decode(line: bytes) -> Any:
    try:
        value = json.loads(line, parse_constant=_no_constant)
        # Written and read again only for a line with a surrogate: a lone one becomes a question mark.
        return json.loads(valid_text(json.dumps(value, ensure_ascii=False))) if b"\\u" in line else value
    except (ValueError, RecursionError):
        return None


def _no_constant(name: str) -> Any:
    """Return the text for NaN and Infinity, which some programs write although JSON does not allow them."""
    return {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}[name]
