"""`run.loop`: yields batches, epoch after epoch, until the target, a stop or the end of the data; shows a progress line."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.core.errors import UsageError
from shoal.sdk.progress import Line, Pace, Standing, main_metric

if TYPE_CHECKING:
    from shoal.sdk.run import Run

Batch = TypeVar("Batch")


def batches(
    run: Run, loader: Iterable[Batch], *, max_steps: int | None, epochs: int | None, desc: str | None
) -> Iterator[Batch]:
    """Yield the batches of `Run.loop`. A batch is fetched only if a step will use it, so that data positions stay exact."""
    show = ProgressLine(run, desc) if run.is_main else None
    first = True
    try:
        for epoch in run.epochs(epochs):
            before, may_be_empty = run.global_step, run.resumed and first
            first = False  # only the first epoch after a resume may have no batches left
            if _over(run, max_steps):
                return
            _set_sampler_epoch(loader, epoch)
            for batch in loader:
                yield batch
                if show is not None:
                    show.after_step()
                if _over(run, max_steps):
                    return
            if epochs is None and not may_be_empty and not run.stepped_since(before):
                raise UsageError(
                    "run.loop read all data once, but run.step was never called",
                    hint="call run.step(loss=…) once per iteration, or pass epochs=… to run.loop",
                )
    finally:
        if show is not None:
            show.close()


class ProgressLine:
    """Progress line of one loop, on the main worker."""

    def __init__(self, run: Run, desc: str | None = None):
        self._run, self._desc = run, desc
        self._line, self._pace = Line(), Pace()
        self._pace.add(time.monotonic(), run.global_step)

    def after_step(self) -> None:
        if self._line.due:
            self._pace.add(time.monotonic(), self._run.global_step)
            self._line.draw(self._standing())

    def print_above(self, text: str) -> None:
        self._line.print_above(text)

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
            metric=main_metric(run.last_metrics),
            steps_per_s=self._pace.steps_per_s(now, step),
            left_s=self._pace.left_s(now, step, total) if total is not None and step < total else None,
            saved_s=time.time() - saved_at if saved_at is not None else None,
        )


def _over(run: Run, max_steps: int | None) -> bool:
    return run.should_stop or (max_steps is not None and run.global_step >= max_steps)


def _set_sampler_epoch(loader: Any, epoch: int) -> None:
    """Set the epoch of a DistributedSampler that the script made; otherwise it would repeat its first epoch."""
    sampler: Any = getattr(loader, "sampler", None)
    if type(sampler).__name__ == "DistributedSampler":
        sampler.set_epoch(epoch)
