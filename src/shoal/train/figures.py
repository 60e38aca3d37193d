"""Draw the metrics of a run as SVG files, without a display: `python -m shoal.train.figures RUN_DIR`.

SVG needs no library and takes 10 ms a figure. PNG files, which TopSpin makes, are drawn by matplotlib in half a second.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shoal.core.errors import MissingExtra, NotFound, ShoalError, UsageError
from shoal.core.records import Kind

Points = Sequence[tuple[float, float]]
_WIDTH, _HEIGHT = 900, 540
_LEFT, _RIGHT, _TOP, _BOTTOM = 96, 24, 48, 56
_INK, _GRID, _CURVE = "#282828", "#e1e1e1", "#1f62b4"
_MAX_TITLE = 60
PNG, SVG = ".png", ".svg"
_KINDS = {Kind.STEP: "train", Kind.EVALUATION: "eval"}
_AXES = ("step", "seen", "time")


def draw(
    prefix: str | Path, series: Mapping[str, Points], smooth: Sequence[int] = (1, 256), ending: str = SVG
) -> list[Path]:
    """Draw each series and return the files.

    Args:
        prefix: Start of the file names: `<prefix>.<name>.svg`, or `<prefix>.<name>.smoothed_<width>.svg`.
        series: Points (x, y) by name. Series without a finite value are left out.
        smooth: Widths of the moving mean; 1 draws the points as they are.
        ending: .svg, or .png, which needs matplotlib.

    Example:
        >>> draw("figures/run", {"train.loss": [(0, 2.3), (100, 1.9)]}, smooth=[1])
    """
    made = []
    for name, points in series.items():
        finite = [(float(x), float(y)) for x, y in points if math.isfinite(x) and math.isfinite(y)]
        if not finite:
            continue
        for width in smooth:
            tail = f".smoothed_{width}" if width > 1 else ""
            path = Path(f"{prefix}.{_safe(name)}{tail}{ending}")
            title = name if width <= 1 else f"{name} (mean of {width})"
            _write(path, chart(title, moving_mean(finite, width), ending))
            made.append(path)
    return made


def chart(title: str, points: Points, ending: str = SVG) -> bytes:
    """Return the picture of one curve with its axes: an SVG, or with `ending=".png"` a PNG, which needs matplotlib."""
    return _png(title, points) if ending == PNG else _svg(title, points)


def moving_mean(points: Points, width: int) -> Points:
    """Return points whose y is the mean of up to `width` values ending there."""
    if width <= 1:
        return points
    found, total = [], 0.0
    for i, (x, y) in enumerate(points):
        total += y - (points[i - width][1] if i >= width else 0.0)
        found.append((x, total / min(i + 1, width)))
    return found


def ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Return about `about` round numbers within the range."""
    rough = (high - low) / about
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """Return a short label such as 12k or 0.05."""
    if value == 0 or abs(value) < 1e-12:
        return "0"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.6g}{unit}"
    return f"{value:.4g}"


def read_run(directory: Path, axis: str = "seen") -> dict[str, list[tuple[float, float]]]:
    """Return every metric of a run directory by `train.NAME` or `eval.NAME`.

    `axis` is "step", "seen" (samples) or "time" (seconds). If a resumed run has repeated steps, the later ones count.
    """
    path = directory if directory.is_file() else directory / "spool" / "rank-0.jsonl"
    if not path.is_file():
        raise NotFound(f"{directory} is not a run directory: it has no {path.name}")
    if axis not in _AXES:
        raise UsageError(f"the x axis must be one of {', '.join(_AXES)}, not {axis!r}")
    series: dict[str, list[tuple[float, float]]] = {}
    seen, start = 0.0, None
    for record in _records(path):
        values, step, at = record["v"], float(record["i"]), float(record["t"])
        start = at if start is None else start
        seen = float(values.get("seen", seen)) if record["k"] == Kind.STEP else seen
        x = {"step": step, "seen": seen or step, "time": at - start}[axis]
        for name, value in values.items():
            if isinstance(value, int | float) and (name != "seen" or axis != "seen"):
                points = series.setdefault(f"{_KINDS[record['k']]}.{name.removeprefix('eval/')}", [])
                while points and points[-1][0] >= x:
                    points.pop()
                points.append((x, float(value)))
    return series


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m shoal.train.figures", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path, metavar="RUN_DIR")
    parser.add_argument("--x-from", type=float, default=-math.inf)
    parser.add_argument("--x-to", type=float, default=math.inf)
    parser.add_argument("--axis", choices=_AXES, default="seen", help="unit of the x axis (default: seen, the samples)")
    parser.add_argument("--lines", nargs="+", help="only these metrics, such as train.loss")
    parser.add_argument(
        "--smooth", type=int, nargs="+", default=[1, 256], help="widths of the moving mean (default: 1 256)"
    )
    parser.add_argument("--out", type=Path, help="output folder (default: RUN_DIR/figures)")
    args = parser.parse_args(argv)
    try:
        made = _draw_run(args)
    except ShoalError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return error.exit_code
    for path in made:
        print(path)
    return 0


def _draw_run(args: argparse.Namespace) -> list[Path]:
    series = read_run(args.directory, args.axis)
    unknown = sorted(set(args.lines or ()) - set(series))
    if unknown:
        raise NotFound(f"there is no {unknown[0]} in {args.directory}; available: {', '.join(sorted(series))}")
    wanted = {
        name: [(x, y) for x, y in points if args.x_from <= x <= args.x_to]
        for name, points in series.items()
        if not args.lines or name in args.lines
    }
    out = args.out or (args.directory.parent if args.directory.is_file() else args.directory) / "figures"
    out.mkdir(parents=True, exist_ok=True)
    return draw(out / args.directory.resolve().name, wanted, args.smooth)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of steps and evaluations. Incomplete lines, left by a killed process, are skipped."""
    with path.open("rb") as file:
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and record.get("k") in _KINDS and isinstance(record.get("v"), dict):
                yield record


def _png(title: str, points: Points) -> bytes:
    if find_spec("matplotlib") is None:
        raise MissingExtra(
            "PNG files are drawn by matplotlib, which is not installed", hint="pip install 'shoal-train[figures]'"
        )
    # Not pyplot: that keeps figures in a global list and may look for a display.
    figure = import_module("matplotlib.figure").Figure(figsize=(_WIDTH / 100, _HEIGHT / 100), dpi=100, layout="tight")
    axes = figure.subplots()
    axes.plot(*zip(*points, strict=True), color=_CURVE, marker="o" if len(points) == 1 else None)
    axes.set_title(title[:_MAX_TITLE], parse_math=False)
    axes.grid(color=_GRID)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def _svg(title: str, points: Points) -> bytes:
    xs, ys = _limits([x for x, _ in points]), _limits([y for _, y in points])
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def place(x: float, y: float) -> tuple[int, int]:
        across, up = (x - xs[0]) / (xs[1] - xs[0]), (y - ys[0]) / (ys[1] - ys[0])
        return round(_LEFT + across * (right - _LEFT)), round(bottom - up * (bottom - _TOP))

    rows = [(place(xs[0], y)[1], number(y)) for y in ticks(*ys)]
    columns = [(place(x, ys[0])[0], number(x)) for x in ticks(*xs)]
    curve = _thinned([place(x, y) for x, y in points])
    grid = [f"M{_LEFT} {y}H{right}" for y, _ in rows] + [f"M{x} {_TOP}V{bottom}" for x, _ in columns]
    shown = "".join(c for c in title[:_MAX_TITLE] if c.isprintable())
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">',
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
            f'<path d="{"".join(grid)}" stroke="{_GRID}"/>',
            f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" stroke="{_INK}" fill="none"/>',
            f'<text x="{_LEFT}" y="32" fill="{_INK}" font-size="18">{escape(shown)}</text>',
            *(f'<text x="{_LEFT - 8}" y="{y + 4}" fill="{_INK}" text-anchor="end">{label}</text>' for y, label in rows),
            *(
                f'<text x="{x}" y="{bottom + 20}" fill="{_INK}" text-anchor="middle">{label}</text>'
                for x, label in columns
            ),
            f'<polyline points="{" ".join(f"{x},{y}" for x, y in curve)}" stroke="{_CURVE}" stroke-width="2" fill="none"/>'
            if len(curve) > 1
            else f'<circle cx="{curve[0][0]}" cy="{curve[0][1]}" r="3" fill="{_CURVE}"/>',
            "</svg>\n",
        ]
    ).encode()


def _limits(values: Iterable[float]) -> tuple[float, float]:
    """Return the limits of an axis with a margin; the range is never empty."""
    found = list(values)
    low, high = min(found), max(found)
    air = (high - low) * 0.04 or abs(low) * 0.05 or 1.0
    return low - air, high + air


def _thinned(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Reduce the points in each column of pixels to the first, lowest, highest and last."""
    found: list[tuple[int, int]] = []
    column: list[tuple[int, int]] = []
    for point in [*places, (-1, -1)]:
        if column and point[0] != column[0][0]:
            low, high = min(column, key=lambda p: p[1]), max(column, key=lambda p: p[1])
            found += dict.fromkeys([column[0], low, high, column[-1]])
            column = []
        column.append(point)
    return found


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    aside.write_bytes(data)
    aside.replace(path)


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", ".", name).strip(".") or "figure"


if __name__ == "__main__":
    sys.exit(main())
