"""The graph of jobs that start after each other, as boxes and lines of a drawing: earlier jobs on the left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.server.context import Context
from shoal.server.jobs import after
from shoal.server.policy import Access

_WIDE, _HIGH, _GAP, _BETWEEN = 150, 34, 56, 12
_MOST_LETTERS = 18


@dataclass(frozen=True, slots=True)
class Box:
    """A job in the drawing."""

    id: str
    name: str
    status: str
    x: int
    y: int
    width: int = _WIDE
    height: int = _HIGH

    @property
    def label(self) -> str:
        """The name, shortened if it is too long for the box."""
        return self.name if len(self.name) <= _MOST_LETTERS else f"{self.name[: _MOST_LETTERS - 1]}…"


@dataclass(frozen=True, slots=True)
class Drawing:
    """Boxes of jobs, and lines between them as SVG paths."""

    width: int
    height: int
    boxes: list[Box]
    lines: list[str]


def drawing(ctx: Context, access: Access, job_id: str) -> Drawing | None:
    """Return the drawing of all jobs that are before or after this one, directly or in turn; None if there are none."""
    with ctx.db.read() as session:
        jobs = {job.id: job for job in after.connected(session, access, job_id)}
    if len(jobs) < 2:
        return None
    before = {key: [one["id"] for one in job.spec.get("after") or () if one["id"] in jobs] for key, job in jobs.items()}
    columns: dict[int, list[str]] = {}
    for key, column in _columns(before).items():
        columns.setdefault(column, []).append(key)
    boxes = {
        key: Box(key, jobs[key].name, jobs[key].state, column * (_WIDE + _GAP) + 1, row * (_HIGH + _BETWEEN) + 1)
        for column, keys in columns.items()
        for row, key in enumerate(keys)
    }
    lines = [_line(boxes[one], boxes[key]) for key, earlier in before.items() for one in earlier]
    width = len(columns) * (_WIDE + _GAP) - _GAP + 2
    height = max(map(len, columns.values())) * (_HIGH + _BETWEEN) - _BETWEEN + 2
    return Drawing(width, height, list(boxes.values()), lines)


def _columns(before: Mapping[str, list[str]]) -> dict[str, int]:
    """Return job → its column: one behind the last of the jobs before it. Ids grow with time, so earlier jobs come first."""
    found: dict[str, int] = {}
    for key in sorted(before):
        found[key] = 1 + max((found[one] for one in before[key]), default=-1)
    return found


def _line(start: Box, end: Box) -> str:
    x1, y1, x2, y2 = start.x + _WIDE, start.y + _HIGH // 2, end.x, end.y + _HIGH // 2
    middle = (x1 + x2) // 2
    return f"M{x1} {y1}C{middle} {y1} {middle} {y2} {x2} {y2}"
