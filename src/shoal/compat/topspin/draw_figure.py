"""Command that draws parts of a run's figures: `python -m topspin.tools.draw_figure --path_work P --out_file F.png`."""

from __future__ import annotations

import argparse
import pickle
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.compat.topspin.figures import Line, points_of, usual_ending
from shoal.core.errors import NotFound, ShoalError, UsageError
from shoal.train.figures import PNG, SVG, chart, moving_mean


def draw_figure(figure_data: Mapping[str, Line], out_file: str, smooth_width: int = 1) -> list[Path]:
    """Draw the first line to `out_file` and further ones to files next to it; return the files.

    The ending chooses the format: .svg, or .png. Without matplotlib a .png becomes an .svg of the same name.
    """
    made: list[Path] = []
    out = Path(out_file)
    ending = SVG if out.suffix == SVG else usual_ending()
    if out.suffix == PNG:
        out = out.with_suffix(ending)
    for name, line in figure_data.items():
        points = moving_mean(points_of(line), smooth_width)
        if points:
            path = out if not made else out.with_name(f"{out.stem}.{_safe(name)}{out.suffix or ending}")
            path.write_bytes(chart(name, points, ending))
            made.append(path)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="draw_figure", description="Draw the figures of a training.")
    parser.add_argument("--path_work", required=True, help="work folder of the run")
    parser.add_argument("--show", action="store_true", help="only list the lines")
    parser.add_argument("--x_from", type=int, default=0)
    parser.add_argument("--x_to", type=int, default=sys.maxsize)
    parser.add_argument("--line_IDs", default="", help="numbers as --show lists them: 0,2 (default: all)")
    parser.add_argument("--out_file", default="")
    args = parser.parse_args(argv)
    try:
        return _run(args)
    except ShoalError as error:
        print(f"error: {error.message}{f' ({error.hint})' if error.hint else ''}", file=sys.stderr)
        return error.exit_code


def _run(args: argparse.Namespace) -> int:
    file = Path(args.path_work) / "meta" / "figure.data"
    if not file.is_file():
        raise NotFound(
            f"{args.path_work} has no figures yet", hint="they are drawn every draw_figure_frequency batches"
        )
    data: dict[str, Any] = pickle.loads(file.read_bytes())  # noqa: S301  of the user's own run
    names = sorted(data)
    for number, name in enumerate(names):
        print(f"{number:<5}: {name}")
    print(f"x.range: [0, {len(data.get('loss', []))}]")
    if args.show:
        return 0
    if not args.out_file:
        raise UsageError("no output file was given", hint="--out_file loss.png, or --show to only list the lines")
    wanted = _numbers(args.line_IDs, len(names))
    cut = {names[n]: [[x, y] for x, y in points_of(data[names[n]]) if args.x_from <= x <= args.x_to] for n in wanted}
    for path in draw_figure(cut, args.out_file):
        print(path)
    return 0


def _numbers(text: str, count: int) -> list[int]:
    words = [word for word in text.replace(" ", "").split(",") if word]
    unknown = [word for word in words if not word.isdigit() or int(word) >= count]
    if unknown:
        raise UsageError(f"there is no line {unknown[0]}", hint=f"numbers go from 0 to {count - 1}; --show lists them")
    return [int(word) for word in words] or list(range(count))


def _safe(name: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "." for c in name)


if __name__ == "__main__":
    raise SystemExit(main())
