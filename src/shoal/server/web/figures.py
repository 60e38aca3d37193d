"""Figures, images and tables a job has logged: one per name, the newest first, earlier ones by their place.

Nothing of them is trusted: pictures are shown by the browser's decoder from a caged address, tables as text, the rest not at all.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from shoal.core.errors import NotFound
from shoal.core.jobs import JobView
from shoal.core.metrics import MediaView
from shoal.core.schema import View
from shoal.server.context import Context
from shoal.server.policy import Access
from shoal.server.services import jobs, media
from shoal.server.web.format import compact
from shoal.server.web.plots import Plot, plot

MOST_FIGURES = 100
_MOST_READ = 4 << 20
_ROWS, _COLUMNS, _CELL = 200, 50, 500
_PLOTLY = "application/vnd.plotly.v1+json"


class Table(View):
    columns: list[str]
    rows: list[list[str]]
    more: int
    """Rows left out."""


class Figure(View):
    name: str
    type: str
    count: int
    """How many were logged under this name."""
    at: int
    """Which of them is shown, oldest 0."""
    shown: MediaView
    kind: Literal["picture", "table", "plot", "file"]
    table: Table | None = None
    plot: Plot | None = None


class Gallery(View):
    job: JobView
    figures: list[Figure]
    more: int


def gallery(ctx: Context, access: Access, job: str) -> Gallery:
    """The newest of each name, by name."""
    view = jobs.get(ctx, access, job)
    groups = sorted(_groups(ctx, access, view.id).items())
    shown = [_figure(ctx, access, view.id, found, len(found) - 1) for _, found in groups[:MOST_FIGURES]]
    return Gallery(job=view, figures=shown, more=max(0, len(groups) - MOST_FIGURES))


def one(ctx: Context, access: Access, job: str, name: str, kind: str, at: int | None) -> Figure:
    """One name's, at a place; the newest where none is given or it is beyond."""
    found = _groups(ctx, access, job).get((name, kind))
    if not found:
        raise NotFound(f"Job '{job}' has logged no {kind or 'figure'} '{name[:200]}'.")
    last = len(found) - 1
    return _figure(ctx, access, job, found, last if at is None else min(max(0, at), last))


def _groups(ctx: Context, access: Access, job: str) -> dict[tuple[str, str], list[MediaView]]:
    groups: dict[tuple[str, str], list[MediaView]] = {}
    for medium in media.list_media(ctx, access, job):
        groups.setdefault((medium.name, medium.type), []).append(medium)
    return groups


def _figure(ctx: Context, access: Access, job: str, found: list[MediaView], at: int) -> Figure:
    shown = found[at]
    figure = Figure(name=shown.name, type=shown.type, count=len(found), at=at, shown=shown, kind="file")
    if shown.mime.startswith("image/") and shown.mime in media.SAFE:
        figure.kind = "picture"
    elif shown.mime in (_PLOTLY, "application/json") and shown.size <= _MOST_READ:
        data = b"".join(media.content(ctx, access, job, shown.id).body)
        if shown.mime == _PLOTLY:
            figure.plot = plot(data)
            figure.kind = "plot" if figure.plot else "file"
        else:
            figure.table = table(data)
            figure.kind = "table" if figure.table else "file"
    return figure


def table(data: bytes) -> Table | None:
    """What `run.log_table` wrote, cut to what a page can show; None where it is something else."""
    try:
        found = json.loads(data)
        columns, rows = found["columns"], found["rows"]
        cells = [[_cell(c) for c in row[:_COLUMNS]] for row in rows[:_ROWS]]
        return Table(columns=[_cell(c) for c in columns[:_COLUMNS]], rows=cells, more=max(0, len(rows) - _ROWS))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _cell(value: Any) -> str:
    return "" if value is None else compact(value)[:_CELL]
