"""Console output of the main worker: the model, a progress line, evaluations, and figures at the end."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from shoal.sdk.loop import ProgressLine
from shoal.sdk.run import Run
from shoal.train.figures import draw
from shoal.train.state import State
from shoal.train.table import parameter_table

logger = logging.getLogger(__name__)


class ConsoleLog:
    """Console output of a training. Silent on all workers except the main one."""

    def __init__(self, run: Run):
        self._run = run
        self._show = ProgressLine(run) if run.is_main else None

    def begin(self, model: Any, state: State) -> None:
        """Log the parameter table, and the resume position if there is one."""
        if self._show is None:
            return
        table = parameter_table(model)
        logger.info("%s", table)
        self._show.print_above(f"{type(model).__name__}: {table.splitlines()[-1]}")
        if state.steps:
            self._show.print_above(f"resumed after step {state.steps}, {state.seen:,} samples")

    def after_step(self) -> None:
        if self._show is not None:
            self._show.after_step()

    def evaluated(self, state: State, values: Mapping[str, float], *, is_best: bool) -> None:
        if self._show is not None:
            text = "  ".join(f"{name} {value:.5g}" for name, value in values.items())
            self._show.print_above(f"evaluated after step {state.steps}: {text}{'  (best so far)' if is_best else ''}")

    def end(self, state: State) -> None:
        """Draw loss, figures of train_batch and evaluations as pictures in the run directory."""
        if self._show is None:
            return
        self._show.close()
        series: dict[str, list[tuple[float, float]]] = {"train.loss": [(float(x), y) for x, y in state.losses]}
        for name, points in state.figures.items():
            series.setdefault(f"train.{name}", [(float(x), y) for x, y in points])
        for seen, values in state.evaluations:
            for name, value in values.items():
                series.setdefault(f"eval.{name}", []).append((float(seen), value))
        try:
            draw(self._run.dir / "figures" / self._run.name, series)
        except OSError as error:
            logger.warning("shoal: no figures were drawn: %s", error)
