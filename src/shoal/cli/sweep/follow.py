"""Live view of a sweep: a table that is redrawn on a terminal, or a line for each finished trial in a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shoal.cli.shared.format import clean, duration
from shoal.cli.shared.output import json_line, out
from shoal.cli.sweep.page import best_text, progress_text, state_text, trial_columns, trial_text
from shoal.cli.training.follow import TALK_EVERY_S, detach
from shoal.core.errors import JobFailed, Unreachable
from shoal.core.sweeps import SweepState, SweepSummary, SweepView, TrialState, TrialView

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from shoal.client import Client

LOOK_S = 1.0
PATIENCE_S = 600.0
"""Seconds to wait for a server that does not answer. The sweep itself continues meanwhile."""
MOST_RUNNING, MOST_BEST = 8, 3
_PAGE = 500


def follow_sweep(client: Client, sweep: SweepSummary) -> int:
    """Follow a sweep until it ends (return 0 or raise JobFailed) or until ^C, which only detaches."""
    try:
        view = _Watch(client, sweep.name).run()
    except KeyboardInterrupt:
        return detach(f"Sweep '{sweep.name}'", see=f"sweep trials {sweep.name} -f", stop=f"sweep stop {sweep.name}")
    return finish(view)


def finish(view: SweepView) -> int:
    """Print the end of a sweep and return 0; raise JobFailed if it did not finish."""
    if view.status is SweepState.FINISHED:
        took = duration((view.ended_at - view.created_at).total_seconds()) if view.ended_at else ""
        out.status("finished", view.status, f"after {took}: {progress_text(view)}")
        out.info(f"best: {best_text(view)}" if view.best else f"No trial has reported {clean(view.metric)}.")
        return 0
    why = clean(view.reason) if view.reason else "no reason was given"
    raise JobFailed(f"Sweep '{view.name}' {view.status}: {why}", hint=f"{out.prog} sweep trials {view.name}")


@dataclass(slots=True)
class _Watch:
    client: Client
    name: str
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep
    _below: int | None = None
    """Number of a trial: all trials up to it have ended and been printed."""
    _printed: set[int] = field(default_factory=set)
    """Numbers of the printed trials above `_below`."""
    _said_at: float = field(default=float("-inf"))

    def run(self) -> SweepView:
        with _screen() as live:
            while True:
                view, running = self._poll()
                if live is not None:
                    live.update(self._drawn(view, running), refresh=True)
                elif view.ended_at is None and self.clock() - self._said_at >= TALK_EVERY_S:
                    self._said_at = self.clock()
                    best = f"; best {best_text(view)}" if view.best else ""
                    out.dim(f"  {progress_text(view)}{best}")
                if view.ended_at is not None:
                    return view
                self.pause(LOOK_S)

    def _poll(self) -> tuple[SweepView, list[TrialView]]:
        """Return the sweep and its running trials; print the trials that have ended since the last poll."""
        lost_at: float | None = None
        while True:
            try:
                view = self.client.sweeps.get(self.name)
                found = list(self._from(self._below))
            except Unreachable as error:
                if lost_at is None:
                    lost_at = self.clock()
                    out.warn(f"{error.message} The sweep continues; waiting for the server.")
                elif self.clock() - lost_at > PATIENCE_S:
                    raise
                self.pause(LOOK_S)
                continue
            if lost_at is not None:
                out.info("The server is back.")
            return view, self._print_ended(found)

    def _from(self, after: int | None) -> Iterator[TrialView]:
        while page := self.client.sweeps.trials(self.name, limit=_PAGE, after=after):
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1].number

    def _print_ended(self, found: list[TrialView]) -> list[TrialView]:
        running = [trial for trial in found if trial.state is TrialState.RUNNING]
        for trial in found:
            if trial.state is not TrialState.RUNNING and trial.number not in self._printed:
                self._printed.add(trial.number)
                self._print(trial)
        if found:
            self._below = running[0].number - 1 if running else found[-1].number
            self._below = None if self._below < 0 else self._below
            self._printed = {number for number in self._printed if self._below is None or number > self._below}
        return running

    def _print(self, trial: TrialView) -> None:
        if out.json:
            out.write(json_line(trial))
        elif not _stays():
            out.line(trial_text(trial))

    def _drawn(self, view: SweepView, running: list[TrialView]) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        head = Text.assemble(
            (view.name, "bold"),
            "  ",
            state_text(view),
            f"  {progress_text(view, with_bar=True)}",
        )
        lines: list[RenderableType] = [head]
        if view.best is not None:
            best = self.client.sweeps.trials(self.name, order="result", limit=MOST_BEST)
            lines += [Text("best so far", "dim"), out.rich_table(best, trial_columns(view.spec.space))]
        if running:
            shown = running[:MOST_RUNNING]
            more = f" ({len(shown)} of {len(running)})" if len(running) > len(shown) else ""
            lines += [Text(f"running{more}", "dim"), out.rich_table(shown, trial_columns(view.spec.space))]
        return Group(*lines)


def _stays() -> bool:
    """Check whether a table can be kept on the screen and redrawn."""
    return out.is_terminal and out.talks_to_terminal and not out.quiet and not out.json


@contextmanager
def _screen() -> Iterator[Live | None]:
    if not _stays():
        yield None
        return
    from rich.live import Live

    with Live(
        console=out.console(stderr=True), auto_refresh=False, redirect_stdout=False, redirect_stderr=False
    ) as live:
        yield live
