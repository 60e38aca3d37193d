"""Metrics of a job: a mapping from names to points, a data frame, and a chart in notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from shoal.api.chart import svg
from shoal.api.frames import frame

if TYPE_CHECKING:
    import pandas

Points = list[tuple[float, float]]


def of_view(view: Mapping[str, Any], axis: str) -> Metrics:
    """Return the metrics of core.metrics.MetricsView; values that are not finite come as text."""
    return Metrics({name: [(x, float(y)) for x, y in found] for name, found in view["metrics"].items()}, axis)


class Metrics(Mapping[str, Points]):
    """Metric → list of (x, value), in order, made by `Job.metrics`. x is the step, or seconds since the start."""

    def __init__(self, points: Mapping[str, Points], axis: str = "step"):
        self._points, self.axis = dict(points), axis

    @property
    def last(self) -> dict[str, float]:
        """Return metric → last value."""
        return {name: points[-1][1] for name, points in self._points.items() if points}

    def frame(self) -> pandas.DataFrame:
        """Return a data frame with one row per step (the index) and one column per metric.

        Returns:
            A pandas data frame; a metric without a value at a step is NaN there.

        Example:
            >>> space.job("first").metrics("loss").frame()["loss"].min()
        """
        rows: dict[float, dict[str, float]] = {}
        for name, points in self._points.items():
            for x, value in points:
                rows.setdefault(x, {})[name] = value
        table = frame(({self.axis: x, **rows[x]} for x in sorted(rows)), [self.axis, *self._points])
        return table.set_index(self.axis)

    def __getitem__(self, name: str) -> Points:
        return self._points[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._points)

    def __len__(self) -> int:
        return len(self._points)

    def __repr__(self) -> str:
        return f"Metrics({', '.join(f'{name}={value:.4g}' for name, value in self.last.items())})"

    def _repr_html_(self) -> str:
        return svg(self._points, self.axis)
