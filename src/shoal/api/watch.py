"""Live view of a job in a notebook: state, charts and the last lines, redrawn in place. Elsewhere its lines are printed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

from shoal.api.chart import svg
from shoal.api.metrics import of_view
from shoal.client.follow import Changed, Lines, Lost, NewMetrics

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.core.jobs import JobSummary

_EVERY_S = 1.0
_LINES, _POINTS = 12, 400
_COLORS = {"succeeded": "#15803d", "failed": "#b91c1c", "stopped": "#6b7280"}


def watch(client: Client, job: JobSummary) -> None:
    """Follow a job until it has ended. An interruption ends only this."""
    shown = _LiveView(client, job, _display())
    try:
        for event in client.jobs.follow(job.id):
            shown.add(event)
        shown.draw(force=True)
    except KeyboardInterrupt:
        shown.draw(force=True)
        print(f"Stopped watching; the job continues. Stop it: shoal training stop {job.name}")


class _LiveView:
    def __init__(self, client: Client, job: JobSummary, display: Callable[[str], None] | None):
        self._client, self._job, self._display = client, job, display
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._metrics: dict[str, Any] = {}
        self._drawn_at, self._has_new = float("-inf"), True
        self._lost = ""

    def add(self, event: object) -> None:
        if isinstance(event, Lines):
            if self._display is None:
                for line in event.lines:
                    print(line.text, flush=True)
            self._lines.extend(line.text for line in event.lines)
        elif isinstance(event, Changed):
            self._job = event.job
        elif isinstance(event, NewMetrics):
            self._has_new = True
        self._lost = event.error.message if isinstance(event, Lost) else ""
        self.draw()

    def draw(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if self._display is None or (not force and now - self._drawn_at < _EVERY_S):
            return
        self._drawn_at = now
        if self._has_new or force:
            self._has_new = False
            self._metrics = dict(of_view(self._client.metrics.read(self._job.id, points=_POINTS), "step"))
        self._display(self._html())

    def _html(self) -> str:
        job, progress = self._job, self._job.progress
        at = f" · {progress.unit} {progress.step}" if progress else ""
        at += f" · {progress.fraction:.0%}" if progress and progress.fraction is not None else ""
        why = f"<p>{escape(job.reason)}</p>" if job.reason and job.status.is_terminal else ""
        lost = f'<p style="color:#b45309">{escape(self._lost)} Trying again …</p>' if self._lost else ""
        lines = "\n".join(escape(line) for line in self._lines)
        color = _COLORS.get(str(job.status), "#2563eb")
        return (
            f'<div><p><b>{escape(job.name)}</b> <span style="color:{color}">{escape(str(job.status))}</span>{at}</p>{why}{lost}'
            f"{svg(self._metrics) if self._metrics else ''}"
            f'<pre style="font-size:12px;max-height:16em;overflow:auto">{lines}</pre></div>'
        )


def _display() -> Callable[[str], None] | None:
    """Return a function that shows HTML in one place of a notebook and replaces it; None outside of notebooks."""
    try:
        from IPython import get_ipython
        from IPython.display import HTML, display
    except ImportError:
        return None
    shell = get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    handle: Any = None

    def show(html: str) -> None:
        nonlocal handle
        if handle is None:
            handle = display(HTML(html), display_id=True)  # type: ignore[no-untyped-call]
        else:
            handle.update(HTML(html))  # type: ignore[no-untyped-call]

    return show
