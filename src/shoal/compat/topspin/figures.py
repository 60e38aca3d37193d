"""What a training draws: its losses, its evaluations and the user's own figures, as PNG files and for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shoal.compat.topspin.logs import Logger
from shoal.train.figures import draw

Line = list[Any]
"""Numbers, one per batch; or [batch, number] of evaluations."""


class Figures:
    """All but the losses, which the trainer keeps; saved and restored with its checkpoints."""

    def __init__(self) -> None:
        self.lines: dict[str, Line] = {}

    def add(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.lines.setdefault(name, []).append(float(value))

    def add_evaluation(self, name: str, batch_id: int, value: float) -> None:
        self.lines.setdefault(name, []).append([batch_id, float(value)])

    def with_losses(self, losses: Iterable[float]) -> dict[str, Line]:
        """As TopSpin keeps them in meta/figure.data and in model files."""
        return {"loss": list(losses), **self.lines}

    def state_dict(self) -> dict[str, Any]:
        return {"lines": self.lines}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.lines = {
            name: [list(v) if isinstance(v, tuple | list) else v for v in line] for name, line in state["lines"].items()
        }


def points_of(line: Line) -> list[tuple[float, float]]:
    return [(p[0], p[1]) if isinstance(p, list | tuple) else (x, p) for x, p in enumerate(line)]


def draw_all(path_work: str, data: Mapping[str, Line], widths: Any) -> list[Path]:
    """`<run>.train.loss.png` and the like in the work folder, one for each line and width of smoothing."""
    series = {f"train.{name}": points_of(line) for name, line in data.items() if line}
    prefix = Path(path_work) / Path(path_work).name
    return draw(prefix, series, widths if isinstance(widths, list | tuple) else [widths])


class Board:
    """TensorBoard's files in the work folder, over samples; nothing where it is not installed."""

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
