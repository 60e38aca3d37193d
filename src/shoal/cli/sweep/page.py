"""Display of a sweep and its trials on a terminal and in a pipe."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from shoal.cli.shared.format import STATUS_STYLES, bar, clean, duration, plural
from shoal.cli.shared.output import Column, out
from shoal.cli.training.spark import number

if TYPE_CHECKING:
    from shoal.core.sweeps import SweepSummary, SweepView, TrialView

BEST = 5
"""Number of trials that `inspect` shows."""
_BAR = 16


def print_sweep(view: SweepView, best: Sequence[TrialView]) -> None:
    spec = view.spec
    out.styled((view.name, "bold"), "  ", state_text(view))
    out.line()
    out.fields(
        [
            ("Id", view.id),
            ("Reason", view.reason),
            ("Trials", progress_text(view, with_bar=out.is_terminal)),
            ("Best", best_text(view)),
            ("Search", f"{spec.search}, {plural(spec.parallel, 'trial')} at once, seed {spec.seed}"),
            ("Metric", f"{clean(spec.metric)}, {'smaller' if spec.direction == 'min' else 'larger'} is better"),
            ("Command", shlex.join(spec.job.entry)),
            ("Slot time", duration(view.slot_seconds) if view.slot_seconds else None),
            ("Cost", None if view.cost is None else f"{view.cost:.2f}"),
            ("Submitted", view.created_at),
            ("Ended", view.ended_at),
        ]
    )
    out.heading("Parameters")
    importance = view.importance
    columns = [
        Column("PARAMETER", lambda name: name),
        Column("VALUES", lambda name: _values(view, name), is_text=True),
        Column(
            "IMPORTANCE", lambda name: f"{importance[name]:.0%}" if name in importance else None, is_right=True, rank=1
        ),
    ]
    out.table(list(spec.space), columns)
    if best:
        out.heading("Best trials")
        out.table(best, trial_columns(spec.space))
    _next_commands(view)


def state_text(view: SweepSummary) -> tuple[str, str]:
    """Return the state of a sweep and its style."""
    stopping = " (stopping)" if view.stop_requested and view.ended_at is None else ""
    return f"{view.status}{stopping}", STATUS_STYLES.get(view.status, "default")


def trial_columns(names: Iterable[str], *, with_job: bool = False) -> list[Column]:
    def of(name: str) -> Callable[[TrialView], str | None]:
        return lambda trial: value_text(trial.params[name]) if name in trial.params else None

    columns = [
        Column("TRIAL", lambda t: t.number, is_right=True),
        Column("STATE", lambda t: t.state, is_status=True),
        Column("RESULT", lambda t: result_text(t.result), is_right=True),
        *(Column(clean(name), of(name), is_right=True, rank=2) for name in names),
        Column("REPORTS", lambda t: t.reports, is_right=True, rank=4),
        Column("RAN FOR", lambda t: None if t.seconds is None else duration(t.seconds), is_right=True, rank=3),
    ]
    if with_job:
        columns += [Column("JOB", lambda t: t.job, rank=2), Column("WHY", lambda t: t.reason, is_text=True, rank=3)]
    return columns


def progress_text(view: SweepSummary, *, with_bar: bool = False) -> str:
    """Return the progress of a sweep: `━━━╌╌ 5 of 12, 2 running, 1 pruned, 3 min left`."""
    ended = sum(count for state, count in view.counts.items() if state != "running")
    parts = [f"{ended} of {view.trials}"]
    parts += [f"{count} {state}" for state, count in view.counts.items() if count and state != "done"]
    if view.eta_s is not None and view.ended_at is None:
        parts.append(f"{duration(view.eta_s)} left")
    drawn = f"{bar(ended / max(1, view.trials), _BAR)} " if with_bar else ""
    return drawn + ", ".join(parts)


def best_text(view: SweepSummary) -> str | None:
    if view.best is None:
        return None
    return f"{result_text(view.best.result)} by trial {view.best.number}: {params_text(view.best.params)}"


def trial_text(trial: TrialView) -> str:
    """Return one line for a trial that has ended."""
    parts = [f"trial {trial.number}", trial.state, result_text(trial.result) or "-", params_text(trial.params)]
    if trial.seconds is not None:
        parts.append(duration(trial.seconds))
    if trial.reason and trial.state != "done":
        parts.append(f"({clean(trial.reason)})")
    return "  ".join(parts)


def params_text(params: dict[str, Any]) -> str:
    return clean(" ".join(f"{name}={value_text(value)}" for name, value in params.items()))


def value_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return number(value)
    return json.dumps(value)


def result_text(value: float | None) -> str | None:
    if value is None:
        return None
    return number(value) if math.isfinite(value) else str(value)


def _values(view: SweepView, name: str) -> str:
    from shoal.tune.space import param_text

    return param_text(name, view.spec.space[name]).partition("=")[2]


def _next_commands(view: SweepView) -> None:
    if not out.is_terminal:
        return
    commands = [("sweep trials", " -f" if view.ended_at is None else "", "list its trials")]
    if view.ended_at is None:
        commands.append(("sweep stop", "", "stop it"))
    elif view.counts.get("failed"):  # type: ignore[call-overload]
        commands.append(("sweep rerun", " --failed", "repeat the failed trials"))
    out.line()
    for command, options, what in commands:
        out.styled((f"{out.prog} {command} {view.name}{options}".ljust(48), "cyan"), (f" {what}", "dim"))
