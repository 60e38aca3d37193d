"""Charts on the wire: lines of many runs, marks on curves, definitions from scripts, and layouts."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from shoal.core.schema import Schema, Utc, View

MarkKind = Literal["checkpoint", "restart", "resume", "preempted", "stalled", "failed", "note"]
ChartPage = Literal["job", "compare", "runs"]
MAX_LAYOUT = 200_000
"""Characters of a layout as JSON."""


def check_layout(layout: dict[str, Any]) -> dict[str, Any]:
    """Return the layout; raise ValueError if it is too long."""
    if len(json.dumps(layout)) > MAX_LAYOUT:
        raise ValueError(f"a layout can have at most {MAX_LAYOUT} characters")
    return layout


Layout = Annotated[dict[str, Any], AfterValidator(check_layout)]


class ChartLine(View):
    """One line of a chart, in columns. A point stands for an interval of `size` points, or for one logged point."""

    jobs: list[str]
    """Ids of its runs: one, or those whose mean it is."""
    name: str
    """Metric or expression."""
    x: list[float]
    """Last x of each interval; of a mean its position."""
    mean: list[float | None]
    count: int
    """Number of points it was made from."""
    last: float | None
    size: int = 1
    low: list[float | None] | None = None
    """Lowest value of each interval; of a mean, of the runs. None where every point is shown."""
    high: list[float | None] | None = None
    std: list[float | None] | None = None
    """Standard deviation over the runs of a mean."""
    runs: list[int] | None = None
    """Number of runs of each value of a mean."""
    smooth: list[float | None] | None = None
    """Smoothed values, computed from all points."""
    at: list[float | None] | None = None
    """Unix time of each point, if requested."""
    attempt: int | None = None
    """Attempt whose points a later one has replaced, if those are requested; None for the current line."""


class ChartLines(View):
    """Lines of a chart."""

    lines: list[ChartLine]
    missing: list[str] = []
    """Metrics that none of the runs has logged. Names with spaces or operators stand in double quotes: `"my metric" / 2`."""


class Mark(View):
    """Event of a run on its curves."""

    kind: MarkKind
    step: int | None
    at: float
    """Unix time in seconds."""
    text: str
    attempt: int | None = None
    id: int | None = None
    """Number of a note, by which it can be deleted."""


class StepNoteView(View):
    """Note at a step of a run."""

    id: int
    step: int
    text: str
    created_by: str
    created_at: Utc


class NoteSave(Schema):
    """Note at a step of a run."""

    step: int = Field(ge=-(1 << 53), le=1 << 53)
    text: str = Field(min_length=1, max_length=1000)


class ChartDefinitions(View):
    """Charts and axes that a script has defined with `run.define_metric` and `run.define_chart`."""

    metrics: dict[str, dict[str, Any]] = {}
    """Metric or pattern (`eval/*`) → step (the metric for x), goal (min or max), hidden."""
    charts: list[dict[str, Any]] = []
    """title, metrics, x, section, log_x, log_y."""


class LayoutSave(Schema):
    """Layout of a page's charts: what the console keeps of sections, panels and their settings."""

    layout: Layout


class Layouts(View):
    """Layouts of a page: one's own, which comes first, and the one that the workspace shares."""

    mine: dict[str, Any] | None
    shared: dict[str, Any] | None
    shared_by: str | None = None
    shared_at: Utc | None = None
