"""Figures, images and tables that a job has logged: for each name the newest, and earlier ones by their index.

None of them is trusted: images are served with headers that block scripts, tables are shown as text, other files not at all.
"""

from __future__ import annotations

import itertools
import json
import math
from typing import Any, Literal

from shoal.core.errors import NotFound
from shoal.core.jobs import JobView
from shoal.core.metrics import MediaView
from shoal.core.schema import View
from shoal.server.artifacts import media
from shoal.server.context import Context
from shoal.server.jobs import service as jobs
from shoal.server.policy import Access
from shoal.server.web.format import compact
from shoal.server.web.job.plots import Plot, plot

MOST_FIGURES = 100
_MOST_READ = 4 << 20
_ROWS, _COLUMNS, _CELL = 200, 50, 500
_MOST_BARS, _MOST_TEXTS, _TEXT = 1000, 100, 20_000
_PLOTLY = "application/vnd.plotly.v1+json"
_HISTOGRAM = "application/vnd.shoal.histogram+json"
_TEXTS = "application/vnd.shoal.texts+json"


class Table(View):
    columns: list[str]
    rows: list[list[str]]
    more: int
    """Number of rows that are not shown."""


class Histogram(View):
    """Histogram written by `run.log_histogram`, ready to be drawn."""

    bars: list[tuple[float, float, float, float]]
    """x, y, width and height of each bar, in a box of 1000 by 300."""
    low: float
    high: float
    most: int
    """Values of the highest bar."""
    total: int
    outside: int
    """Values below, above, or not finite."""
    mean: float | None
    std: float | None


class Figure(View):
    name: str
    type: str
    count: int
    """Number of figures logged under this name."""
    at: int
    """Index of the one that is shown; the oldest is 0."""
    shown: MediaView
    kind: Literal["picture", "table", "plot", "histogram", "texts", "file"]
    steps: list[int] = []
    """Step of each, oldest first."""
    table: Table | None = None
    histogram: Histogram | None = None
    texts: list[str] | None = None
    plot: Plot | None = None


class Gallery(View):
    job: JobView
    figures: list[Figure]
    more: int


def gallery(ctx: Context, access: Access, job: str) -> Gallery:
    """Return the newest figure of each name, sorted by name."""
    view = jobs.get(ctx, access, job)
    groups = sorted(_groups(ctx, access, view.id).items())
    shown = [_figure(ctx, access, view.id, found, len(found) - 1) for _, found in groups[:MOST_FIGURES]]
    return Gallery(job=view, figures=shown, more=max(0, len(groups) - MOST_FIGURES))


def one(ctx: Context, access: Access, job: str, name: str, kind: str, at: int | None) -> Figure:
    """Return the figure of one name with index `at`; the newest if `at` is None or too large."""
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
    steps = [medium.step for medium in found]
    figure = Figure(name=shown.name, type=shown.type, count=len(found), at=at, shown=shown, kind="file", steps=steps)
    if shown.mime.startswith("image/") and shown.mime in media.SAFE:
        figure.kind = "picture"
    elif shown.mime in (_PLOTLY, _HISTOGRAM, _TEXTS, "application/json") and shown.size <= _MOST_READ:
        data = b"".join(media.content(ctx, access, job, shown.id).body)
        if shown.mime == _PLOTLY:
            figure.plot = plot(data)
            figure.kind = "plot" if figure.plot else "file"
        elif shown.mime == _HISTOGRAM:
            figure.histogram = histogram(data)
            figure.kind = "histogram" if figure.histogram else "file"
        elif shown.mime == _TEXTS:
            figure.texts = texts(data)
            figure.kind = "texts" if figure.texts is not None else "file"
        else:
            figure.table = table(data)
            figure.kind = "table" if figure.table else "file"
    return figure


def table(data: bytes) -> Table | None:
    """Return a table written by `run.log_table`, shortened to what a page can show; None if it is something else."""
    try:
        found = json.loads(data)
        columns, rows = found["columns"], found["rows"]
        cells = [[_cell(c) for c in row[:_COLUMNS]] for row in rows[:_ROWS]]
        return Table(columns=[_cell(c) for c in columns[:_COLUMNS]], rows=cells, more=max(0, len(rows) - _ROWS))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def histogram(data: bytes) -> Histogram | None:
    """Return the bars of a histogram; None if it is something else. A script wrote it, so nothing in it is trusted."""
    try:
        found = json.loads(data)
        edges, counts = [float(e) for e in found["edges"]], [int(c) for c in found["counts"]]
        if len(edges) != len(counts) + 1 or not 0 < len(counts) <= _MOST_BARS or not all(map(math.isfinite, edges)):
            return None
        most, span = max(counts), edges[-1] - edges[0]
        if span <= 0 or min(counts) < 0:
            return None
        bars = [
            (1000 * (a - edges[0]) / span, 300 - 300 * n / max(most, 1), 1000 * (b - a) / span, 300 * n / max(most, 1))
            for (a, b), n in zip(itertools.pairwise(edges), counts, strict=True)
        ]
        outside = sum(int(found.get(name) or 0) for name in ("below", "above", "not_finite"))
        mean, std = (float(found[name]) if found.get(name) is not None else None for name in ("mean", "std"))
        rounded = [(round(x, 2), round(y, 2), round(w, 2), round(h, 2)) for x, y, w, h in bars]
        return Histogram(
            bars=rounded, low=edges[0], high=edges[-1], most=most, total=int(found["total"]), outside=outside, mean=mean, std=std
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, AttributeError):
        return None


def texts(data: bytes) -> list[str] | None:
    """Return texts written by `run.log_text`, shortened to what a page can show; None if it is something else."""
    try:
        found = json.loads(data)["texts"]
        return [text[:_TEXT] for text in found[:_MOST_TEXTS]] if all(isinstance(t, str) for t in found) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _cell(value: Any) -> str:
    return "" if value is None else compact(value)[:_CELL]
