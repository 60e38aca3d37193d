"""Plotly figures that the console's own charts can draw: lines and points over numbers. Others can only be downloaded."""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
from typing import Any

from shoal.core.schema import View

MOST_POINTS, MOST_TRACES = 5000, 8
_DRAWN = ("scatter", "scattergl", "bar", None)
_CODES = {"f8": "d", "f4": "f", "i8": "q", "i4": "i", "i2": "h", "i1": "b", "u8": "Q", "u4": "I", "u2": "H", "u1": "B"}


class Trace(View):
    label: str
    x: list[float]
    y: list[float | None]


class Plot(View):
    title: str
    x_title: str
    y_title: str
    traces: list[Trace]


def plot(data: bytes) -> Plot | None:
    """Return the plot of a plotly figure; None if it contains anything the charts cannot draw."""
    try:
        figure = json.loads(data)
        traces = [_trace(t, index) for index, t in enumerate(figure["data"])]
        layout = figure.get("layout") or {}
        if not 1 <= len(traces) <= MOST_TRACES:
            return None
        return Plot(title=_title(layout), x_title=_title(layout.get("xaxis")), y_title=_title(layout.get("yaxis")),
                    traces=traces)  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error, binascii.Error):
        return None


def _trace(trace: Any, index: int) -> Trace:
    if trace.get("type") not in _DRAWN or trace.get("xaxis", "x") != "x" or trace.get("yaxis", "y") != "y":
        raise ValueError("not a plain trace")
    y = _numbers(trace["y"])
    x = _numbers(trace["x"]) if trace.get("x") is not None else [float(i) for i in range(len(y))]
    if len(x) != len(y) or not 0 < len(x) <= MOST_POINTS or None in x:
        raise ValueError("nothing to draw over")
    order = sorted(range(len(x)), key=lambda i: x[i] or 0.0)
    label = str(trace.get("name") or f"trace {index}")[:100]
    return Trace(label=label, x=[float(x[i] or 0.0) for i in order], y=[y[i] for i in order])


def _numbers(values: Any) -> list[float | None]:
    """Return the numbers of a list, or of the packed array that newer versions of plotly write."""
    if isinstance(values, dict):
        if "shape" in values:
            raise ValueError("not one-dimensional")
        packed = base64.b64decode(values["bdata"], validate=True)
        code = _CODES[values["dtype"]]
        values = struct.unpack(f"<{len(packed) // struct.calcsize(code)}{code}", packed)
    return [_number(v) for v in values]


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("not a number")
    return float(value) if math.isfinite(value) else None


def _title(part: Any) -> str:
    found = (part or {}).get("title") or ""
    return str(found.get("text") or "" if isinstance(found, dict) else found)[:200]
