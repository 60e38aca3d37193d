"""Axes and charts that a training script has defined."""

from __future__ import annotations

from typing import Any

from shoal.core.charts import ChartDefinitions
from shoal.core.records import Kind
from shoal.server import lookup
from shoal.server.context import Context
from shoal.server.metrics.writes import read_others
from shoal.server.policy import Access

_TEXTS = ("step", "goal", "x", "section", "title")
_FLAGS = ("hidden", "log_x", "log_y")
MAX_CHARTS, MAX_LINES, MAX_TEXT = 200, 40, 500


def get(ctx: Context, access: Access, job: str) -> ChartDefinitions:
    """Return what the script defined; a later definition of the same metric or title replaces an earlier one.

    Records come from a script, so each part is taken only if it is what it should be.
    """
    with ctx.db.read() as session:
        told = read_others(session, lookup.job(session, access, job).id, (Kind.DISPLAY,))
    metrics: dict[str, dict[str, Any]] = {}
    charts: dict[str, dict[str, Any]] = {}
    for record in told:
        values = record.get("v")
        if not isinstance(values, dict):
            continue
        name, lines = _text(record.get("metric")), values.get("metrics")
        if name and len(metrics) < MAX_CHARTS:
            metrics[name] = {**metrics.get(name, {}), **_known(values)}
        elif isinstance(lines, list) and (title := _text(values.get("title"))) and len(charts) < MAX_CHARTS:
            charts[title] = {**_known(values), "metrics": [t for line in lines[:MAX_LINES] if (t := _text(line))]}
    return ChartDefinitions(metrics=metrics, charts=[chart for chart in charts.values() if chart["metrics"]])


def _known(values: dict[str, Any]) -> dict[str, Any]:
    texts = {name: text for name in _TEXTS if (text := _text(values.get(name)))}
    return texts | {name: True for name in _FLAGS if values.get(name) is True}


def _text(value: Any) -> str:
    return value[:MAX_TEXT] if isinstance(value, str) else ""
