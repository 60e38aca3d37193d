"""Media of a run (images, figures, tables, histograms, texts), and definitions of its charts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from shoal.core import records
from shoal.core.errors import UsageError
from shoal.core.metric_expr import parse
from shoal.sdk import media


class MediaMethods:
    """Base of `Run`: the methods that log media and define charts."""

    _main: bool
    _step: int
    _shelf: media.Shelf

    def _record(self, record: records.Record) -> None:
        raise NotImplementedError

    def log_image(self, name: str, data: Any) -> None:
        """Show an image with the run, at the current step. Only rank 0 records it.

        Args:
            name: Images of several steps with the same name are shown together.
            data: A path, encoded bytes, a Pillow image, a numpy array or a tensor. At most 10 MB once encoded.

        Example: `run.log_image("samples/first", images[0])`
        """
        if self._main:
            self._shelf.keep(name, self._step, media.image(data))

    def log_figure(self, name: str, figure: Any) -> None:
        """Show a figure with the run, at the current step. Only rank 0 records it.

        Args:
            name: Figures of several steps with the same name are shown together.
            figure: A matplotlib figure or axes, matplotlib.pyplot, a plotly figure, or an object with `to_html`.

        Example: `run.log_figure("roc", plt.gcf())`
        """
        if self._main:
            self._shelf.keep(name, self._step, media.figure(figure))

    def log_table(self, name: str, columns: Any, rows: Iterable[Sequence[Any]] | None = None) -> None:
        """Show a table with the run, at the current step. Only rank 0 records it.

        Args:
            name: Tables of several steps with the same name are shown together.
            columns: Column names; or, without `rows`, a list of mappings or a pandas or polars data frame.
            rows: One sequence of cells per row.

        Example: `run.log_table("confusion", ["true", "predicted", "count"], rows)`
        """
        if self._main:
            self._shelf.keep(name, self._step, media.table(columns, rows))

    def log_histogram(self, name: str, data: Any, bins: int = 64, range: tuple[float, float] | None = None) -> None:
        """Show the distribution of numbers with the run, at the current step. Only rank 0 records it.

        Args:
            name: Histograms of several steps with the same name are shown over each other.
            data: A tensor, a numpy array, or numbers. Values that are not finite are counted beside it.
            bins: Number of intervals.
            range: Lower and upper end; values outside are counted beside it. Default: from the lowest to the highest value.

        Example: `run.log_histogram("weights/first", model.first.weight)`
        """
        if self._main:
            self._shelf.keep(name, self._step, media.histogram(data, bins, range))

    def log_text(self, name: str, text: str | Sequence[str]) -> None:
        """Show texts with the run, at the current step: samples of a language model, for example. Only rank 0 records them.

        Args:
            name: Texts of several steps with the same name are shown together.
            text: One text, or several.

        Example: `run.log_text("samples", [tokenizer.decode(t) for t in model.generate(prompts)])`
        """
        if self._main:
            self._shelf.keep(name, self._step, media.text(text))

    def define_metric(
        self, name: str, *, step: str | None = None, goal: str | None = None, hidden: bool = False
    ) -> None:
        """Set how the console shows a metric. Only rank 0 records it.

        Args:
            name: A metric, or a pattern such as `eval/*`.
            step: Metric that is its x axis instead of the step, such as `tokens`.
            goal: `min` or `max`: which value is the best.
            hidden: True for metrics that get no chart of their own.

        Example: `run.define_metric("eval/*", step="tokens", goal="min")`
        """
        if goal not in (None, "min", "max"):
            raise UsageError(
                f"goal is {goal!r}; it can be 'min' or 'max'", hint='run.define_metric("loss", goal="min")'
            )
        told = {"step": step, "goal": goal, "hidden": hidden or None}
        if self._main:
            self._record(records.Display(metric=name, values={k: v for k, v in told.items() if v is not None}))

    def define_chart(
        self,
        title: str,
        metrics: Sequence[str],
        *,
        x: str = "step",
        section: str | None = None,
        log_x: bool = False,
        log_y: bool = False,
    ) -> None:
        """Define a chart for the console. Only rank 0 records it; a chart with the same title is replaced.

        Args:
            title: Name of the chart.
            metrics: Metrics or expressions, drawn in one chart.
            x: `step`, `time`, `relative` (run time) or a metric.
            section: Section of the page in which it stands. Default: `Charts`.
            log_x: True for a logarithmic x axis.
            log_y: True for a logarithmic y axis.

        Example: `run.define_chart("Generalisation gap", ["eval/loss - train/loss"], x="tokens")`
        """
        for metric in [metrics] if isinstance(metrics, str) else metrics:
            parse(metric)
        told = {"title": title, "metrics": [metrics] if isinstance(metrics, str) else list(metrics), "x": x}
        flags = {"section": section, "log_x": log_x or None, "log_y": log_y or None}
        if self._main:
            self._record(records.Display(values=told | {k: v for k, v in flags.items() if v is not None}))
