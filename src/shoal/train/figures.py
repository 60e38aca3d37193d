"""Curves as PNG files, drawn without a display: `python -m shoal.train.figures RUN_DIR` draws all that a run has logged."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.core.errors import NotFound, ShoalError, UsageError
from shoal.train.canvas import LETTER_HEIGHT, LETTER_WIDTH, Canvas, Colour

Points = Sequence[tuple[float, float]]
_WIDTH, _HEIGHT = 900, 540
_LEFT, _RIGHT, _TOP, _BOTTOM = 96, 24, 48, 56
_INK: Colour = (40, 40, 40)
_GRID: Colour = (225, 225, 225)
_CURVE: Colour = (31, 98, 180)
_KINDS = {"s": "train", "e": "eval"}
_AXES = ("step", "seen", "time")


def draw(prefix: str | Path, series: Mapping[str, Points], smooth: Sequence[int] = (1, 256)) -> list[Path]:
    """`<prefix>.<name>.png`, and `<prefix>.<name>.smoothed_<width>.png` for each width above 1; the files made.

    A smoothed point is the mean of so many up to it. Series without a finite value are left out.
    """
    made = []
    for name, points in series.items():
        finite = [(float(x), float(y)) for x, y in points if math.isfinite(x) and math.isfinite(y)]
        if not finite:
            continue
        for width in smooth:
            tail = f".smoothed_{width}" if width > 1 else ""
            path = Path(f"{prefix}.{_safe(name)}{tail}.png")
            title = name if width <= 1 else f"{name} (mean of {width})"
            _write(path, chart(title, moving_mean(finite, width)))
            made.append(path)
    return made


def chart(title: str, points: Points) -> bytes:
    """A PNG of one curve with its axes."""
    canvas = Canvas(_WIDTH, _HEIGHT)
    xs, ys = _limits([x for x, _ in points]), _limits([y for _, y in points])
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def place(x: float, y: float) -> tuple[int, int]:
        across, up = (x - xs[0]) / (xs[1] - xs[0]), (y - ys[0]) / (ys[1] - ys[0])
        return round(_LEFT + across * (right - _LEFT)), round(bottom - up * (bottom - _TOP))

    for y in ticks(*ys):
        row = place(xs[0], y)[1]
        canvas.line(_LEFT, row, right, row, _GRID)
        label = number(y)
        canvas.text(_LEFT - 10 - LETTER_WIDTH * len(label), row - LETTER_HEIGHT // 2, label, _INK)
    for x in ticks(*xs):
        column = place(x, ys[0])[0]
        canvas.line(column, _TOP, column, bottom, _GRID)
        label = number(x)
        canvas.text(column - LETTER_WIDTH * len(label) // 2, bottom + 12, label, _INK)
    canvas.line(_LEFT, _TOP, _LEFT, bottom, _INK)
    canvas.line(_LEFT, bottom, right, bottom, _INK)
    canvas.text(_LEFT, 16, title[:60], _INK, size=2)
    canvas.polyline(_thinned([place(x, y) for x, y in points]), _CURVE, thick=2)
    return canvas.to_png()


def moving_mean(points: Points, width: int) -> Points:
    if width <= 1:
        return points
    found, total = [], 0.0
    for i, (x, y) in enumerate(points):
        total += y - (points[i - width][1] if i >= width else 0.0)
        found.append((x, total / min(i + 1, width)))
    return found


def ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Round numbers within the range."""
    rough = (high - low) / about
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    if value == 0 or abs(value) < 1e-12:
        return "0"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.6g}{unit}"
    return f"{value:.4g}"


def read_run(directory: Path, axis: str = "seen") -> dict[str, list[tuple[float, float]]]:
    """Every metric of a run directory by `train.NAME` or `eval.NAME`, over steps, samples seen, or seconds.

    Where a resumed run has done steps again, the later ones count.
    """
    path = directory if directory.is_file() else directory / "spool" / "rank-0.jsonl"
    if not path.is_file():
        raise NotFound(f"{directory} is not a run's directory: there is no {path.name} in it")
    if axis not in _AXES:
        raise UsageError(f"the x axis is one of {', '.join(_AXES)}, not {axis!r}")
    series: dict[str, list[tuple[float, float]]] = {}
    seen, start = 0.0, None
    for record in _records(path):
        values, step, at = record["v"], float(record["i"]), float(record["t"])
        start = at if start is None else start
        seen = float(values.get("seen", seen)) if record["k"] == "s" else seen
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
    parser.add_argument("--axis", choices=_AXES, default="seen", help="what x is (default: samples seen)")
    parser.add_argument("--lines", nargs="+", help="only these metrics, such as train.loss")
    parser.add_argument("--smooth", type=int, nargs="+", default=[1, 256], help="widths (default: 1 256)")
    parser.add_argument("--out", type=Path, help="folder (default: RUN_DIR/figures)")
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
        raise NotFound(f"there is no {unknown[0]} in {args.directory}; there is: {', '.join(sorted(series))}")
    wanted = {
        name: [(x, y) for x, y in points if args.x_from <= x <= args.x_to]
        for name, points in series.items()
        if not args.lines or name in args.lines
    }
    out = args.out or (args.directory.parent if args.directory.is_file() else args.directory) / "figures"
    out.mkdir(parents=True, exist_ok=True)
    return draw(out / args.directory.resolve().name, wanted, args.smooth)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Steps and evaluations; lines torn by a kill are passed over."""
    with path.open("rb") as file:
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and record.get("k") in _KINDS and isinstance(record.get("v"), dict):
                yield record


def _limits(values: Iterable[float]) -> tuple[float, float]:
    """With some air; never empty."""
    found = list(values)
    low, high = min(found), max(found)
    air = (high - low) * 0.04 or abs(low) * 0.05 or 1.0
    return low - air, high + air


def _thinned(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Of the points in one column of pixels: the first, the lowest, the highest and the last."""
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
