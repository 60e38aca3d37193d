"""`run.loop`: batches over epochs until the target, a stop or the end of the data, with a line that shows how it goes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.core.errors import UsageError
from shoal.sdk.progress import Line, Pace, Standing, shown_metric

if TYPE_CHECKING:
    from shoal.sdk.run import Run

Batch = TypeVar("Batch")


def batches(
    run: Run, loader: Iterable[Batch], *, max_steps: int | None, epochs: int | None, desc: str | None
) -> Iterator[Batch]:
    """See Run.loop. A batch is asked for only if a step is going to be made of it: data positions stay exact."""
    show = Show(run, desc) if run.is_main else None
    first = True
    try:
        for epoch in run.epochs(epochs):
            before, may_be_empty = run.global_step, run.resumed and first
            first = False  # only what a resume begins with may have nothing left in it
            if _over(run, max_steps):
                return
            _tell_sampler(loader, epoch)
            for batch in loader:
                yield batch
                if show is not None:
                    show.after_step()
                if _over(run, max_steps):
                    return
            if epochs is None and not may_be_empty and not run.stepped_since(before):
                raise UsageError(
                    "run.loop went through the data once and saw no step",
                    hint="call run.step(loss=…) once per iteration, or pass epochs=… to run.loop",
                )
    finally:
        if show is not None:
            show.close()


class Show:
    """The line of one loop, on the main worker."""

    def __init__(self, run: Run, desc: str | None = None):
        self._run, self._desc = run, desc
        self._line, self._pace = Line(), Pace()
        self._pace.add(time.monotonic(), run.global_step)

    def after_step(self) -> None:
        if self._line.due:
            self._pace.add(time.monotonic(), self._run.global_step)
            self._line.draw(self._standing())

    def say(self, text: str) -> None:
        self._line.say(text)

    def close(self) -> None:
        if self._run.global_step:
            self._line.close(self._standing())

    def _standing(self) -> Standing:
        run, now = self._run, time.monotonic()
        step, total = run.global_step, run.max_steps
        saved_at = run.checkpoint_at
        return Standing(
            step=step,
            total=total,
            desc=self._desc,
            metric=shown_metric(run.last_metrics),
            steps_per_s=self._pace.steps_per_s(now, step),
            left_s=self._pace.left_s(now, step, total) if total is not None and step < total else None,
            saved_s=time.time() - saved_at if saved_at is not None else None,
        )


def _over(run: Run, max_steps: int | None) -> bool:
    return run.should_stop or (max_steps is not None and run.global_step >= max_steps)


def _tell_sampler(loader: Any, epoch: int) -> None:
    """A DistributedSampler of the script's own repeats its first epoch unless it is told."""
    sampler: Any = getattr(loader, "sampler", None)
    if type(sampler).__name__ == "DistributedSampler":
        sampler.set_epoch(epoch)
