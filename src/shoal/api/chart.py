"""Charts as SVG, for notebooks: one small chart per metric. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]
WIDTH, HEIGHT = 340, 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 22, 22
_MOST_CHARTS, _MOST_POINTS = 6, 600
_LINE = "#2563eb"


def svg(metrics: Mapping[str, Points], axis: str = "step") -> str:
    """Return HTML with a chart for each of the first metrics; text without any."""
    drawn = [_chart(name, points, axis) for name, points in list(metrics.items())[:_MOST_CHARTS] if points]
    if not drawn:
        return '<p style="color:#6b7280">no metrics yet</p>'
    more = len(metrics) - _MOST_CHARTS
    rest = f'<p style="color:#6b7280">… and {more} more</p>' if more > 0 else ""
    return f'<div style="display:flex;flex-wrap:wrap;gap:8px">{"".join(drawn)}</div>{rest}'


def _chart(name: str, points: Points, axis: str) -> str:
    finite = [(x, y) for x, y in points if math.isfinite(y)]
    shown = _thinned(finite)
    last = f"{points[-1][1]:.4g}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" aria-label="{escape(name)}, last value {last}" style="font:11px system-ui,sans-serif">',
        f'<text x="{_LEFT}" y="14" fill="currentColor" font-weight="600">{escape(name[:40])}</text>',
        f'<text x="{WIDTH - _RIGHT}" y="14" fill="currentColor" text-anchor="end">{last}</text>',
    ]
    if shown:
        lines += _lines(shown, axis)
    return "".join([*lines, "</svg>"])


def _lines(shown: Points, axis: str) -> list[str]:
    xs, ys = [x for x, _ in shown], [y for _, y in shown]
    low_x, high_x, low_y, high_y = min(xs), max(xs), min(ys), max(ys)
    bottom = HEIGHT - _BOTTOM

    def place(x: float, y: float) -> str:
        across = (x - low_x) / (high_x - low_x or 1)
        up = (y - low_y) / (high_y - low_y) if high_y > low_y else 0.5
        return f"{_LEFT + across * (WIDTH - _LEFT - _RIGHT):.1f},{bottom - up * (bottom - _TOP):.1f}"

    grid = "".join(
        f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}" stroke="currentColor" stroke-opacity=".15"/>'
        for y in (_TOP, (bottom + _TOP) / 2, bottom)
    )
    one = '<circle cx="{}" cy="{}" r="2.5" fill="{}"/>'.format(*place(*shown[0]).split(","), _LINE)
    curve = f'<polyline fill="none" stroke="{_LINE}" stroke-width="1.5" points="{" ".join(place(x, y) for x, y in shown)}"/>'
    return [
        grid,
        _label(_LEFT - 4, _TOP + 4, f"{high_y:.3g}", "end"),
        _label(_LEFT - 4, bottom + 4, f"{low_y:.3g}", "end") if high_y > low_y else "",
        _label(_LEFT, HEIGHT - 6, f"{low_x:g}", "start"),
        _label(WIDTH - _RIGHT, HEIGHT - 6, f"{axis} {high_x:g}", "end"),
        curve if len(shown) > 1 else one,
    ]


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" fill="currentColor" fill-opacity=".7" text-anchor="{anchor}">{escape(text)}</text>'


def _thinned(points: Points) -> Points:
    """Return at most `_MOST_POINTS` points, among them the lowest and the highest of each part, so that peaks stay."""
    if len(points) <= _MOST_POINTS:
        return points
    size = 2 * len(points) / _MOST_POINTS
    kept: list[tuple[float, float]] = []
    for part in range(_MOST_POINTS // 2):
        some = points[int(part * size) : int((part + 1) * size)]
        ends = {min(some, key=lambda p: p[1]), max(some, key=lambda p: p[1])}
        kept += sorted(ends)
    return kept
