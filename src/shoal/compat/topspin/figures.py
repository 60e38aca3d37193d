"""Figures of a training: losses, evaluations and the user's own values, as picture files and for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shoal.compat.topspin.logs import Logger
from shoal.train.figures import PNG, SVG, draw

Line = list[Any]
"""Values of a figure: one number per batch, or [batch, number] for evaluations."""


class Figures:
    """Figures except the losses, which the trainer has. They are saved and restored with its checkpoints."""

    def __init__(self) -> None:
        self.lines: dict[str, Line] = {}

    def add(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.lines.setdefault(name, []).append(float(value))

    def add_evaluation(self, name: str, batch_id: int, value: float) -> None:
        self.lines.setdefault(name, []).append([batch_id, float(value)])

    def with_losses(self, losses: Iterable[float]) -> dict[str, Line]:
        """Return all figures as in TopSpin's meta/figure.data and model files."""
        return {"loss": list(losses), **self.lines}

    def state_dict(self) -> dict[str, Any]:
        return {"lines": self.lines}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.lines = {
            name: [list(v) if isinstance(v, tuple | list) else v for v in line] for name, line in state["lines"].items()
        }


def points_of(line: Line) -> list[tuple[float, float]]:
    return [(p[0], p[1]) if isinstance(p, list | tuple) else (x, p) for x, p in enumerate(line)]


def usual_ending() -> str:
    """Return .png as in TopSpin; without matplotlib, which TopSpin requires and Shoal does not, .svg."""
    return PNG if find_spec("matplotlib") else SVG


def draw_all(path_work: str, data: Mapping[str, Line], widths: Any) -> list[Path]:
    """Draw files such as `<run>.train.loss.png` (.svg without matplotlib) in the work folder, one for each figure and smoothing width."""
    series = {f"train.{name}": points_of(line) for name, line in data.items() if line}
    prefix = Path(path_work) / Path(path_work).name
    return draw(prefix, series, widths if isinstance(widths, list | tuple) else [widths], usual_ending())


class Board:
    """Writer of TensorBoard files in the work folder, by samples; does nothing if TensorBoard is not installed."""

    def __init__(self, folder: Path):
        self.writer: Any = None
        if find_spec("tensorboard") is None:
            Logger.warn("TensorBoard is not installed, so nothing is written for it: pip install tensorboard")
            return
        self.writer = import_module("torch.utils.tensorboard").SummaryWriter(str(folder))

    def add(self, values: Mapping[str, float], seen: int) -> None:
        if self.writer is not None:
            for name, value in values.items():
                self.writer.add_scalar(name, value, seen)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
