"""The run a script holds: one object over the spool, the stop and the training. The script keeps its loop."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.core.errors import UsageError
from shoal.sdk import loop, media, values
from shoal.sdk.context import Context
from shoal.sdk.drill import rehearsal
from shoal.sdk.facts import Facts
from shoal.sdk.options import Options
from shoal.sdk.spool import Spool, quoted
from shoal.sdk.stop import Stop
from shoal.sdk.trackers import Mirror, make
from shoal.sdk.trial import PRUNED, SKIPPED

if TYPE_CHECKING:
    from types import TracebackType

    from shoal.sdk.training import Training

logger = logging.getLogger(__name__)

Batch = TypeVar("Batch")
_TICK_S = 1.0
_WRITE_S = 3600.0
"""Longest wait for a checkpoint that is being written when the run ends."""


class Run(Facts):
    """Made by `shoal.init`; usable as a context manager."""

    def __init__(self, context: Context, options: Options, *, on_finish: Callable[[], None] = lambda: None):
        super().__init__(context, options)
        self._on_finish = on_finish
        self._spool = Spool(context)
        self._stop = Stop(context, store=_store)
        self._mirror: Mirror | None = None
        if self._main and options.trackers:
            self._mirror = Mirror(make(options.trackers, context), self._spool.path, context, options)
            self._mirror.start()
        self._rehearsal = rehearsal(self._spool, self._stop)
        self._finished = False
        self._saved_step = 0
        self._told_epoch: float | None = None
        self._pid = os.getpid()
        self._tick_at = 0.0
        self._mean = values.Mean()
        self._partial = False
        self._behind = values.Behind(self._written)
        self._shelf = media.Shelf(context, self._spool)
        if options.config:
            self._tell("h", v=dict(options.config))
        self._stop.install()

    def prepare(self, *objects: Any) -> Any:
        """Model, optimizer, scheduler, loaders, scaler: given back ready for this worker, in the same order.

        A checkpoint to go on from is loaded here, so `global_step` may be beyond 0 afterwards.
        """
        self._check_alive()
        if self._rehearsal is not None:
            self._rehearsal.before_prepare(self, objects)
        prepared = self._get_training().prepare(objects)
        self._stop.every_s = self._options.checkpoint_every_s
        self._stop.saved()
        return prepared[0] if len(objects) == 1 else prepared

    def step(self, metrics: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        """Say that one iteration is done, with its numbers. Once per iteration, on every rank."""
        if self._halted or self._finished:
            self._past_end()
        numbers = named if metrics is None else values.merge(metrics, named)
        waiting = False
        for name, value in numbers.items():
            if value.__class__ is not float and value.__class__ is not int:
                value = numbers[name] = values.plain(name, value)
                waiting = waiting or values.is_waiting(value)
        training = self._training
        if training is not None:
            boundary = training.is_boundary
            if self._partial or not boundary:
                self._mean.add(numbers, training.weight)
                self._partial = not boundary
                if not boundary:
                    return
                numbers = self._mean.take()
                waiting = any(map(values.is_waiting, numbers.values()))
        step = self._step = self._stop.step = self._step + 1
        now = time.time()
        if waiting or self._behind.queue:
            self._late(step, numbers, now)
        elif numbers:
            self._last = numbers
            if self._main:
                self._spool.write_step(step, numbers, now)
        if now >= self._tick_at:
            self._tick(now)
        if training is not None:
            training.after_step(step, self._last)
            if step == self._total and self._saves_itself:
                self._save()
        if step >= self._stop.next_step:
            self._decide(step)
        if self._rehearsal is not None:
            self._rehearsal.after_step(self, training, step)

    def evaluate(self, metrics: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        """Results of an evaluation at the present step: numbers and short texts."""
        self._check_alive()
        found = {k: values.now(values.plain_or_text(k, v)) for k, v in values.merge(metrics, named).items()}
        if self._training is not None and self._training.replaying:
            return
        self._behind.take(everything=True)
        self._tell("e", i=self._step, v=quoted(found))

    def log_image(self, name: str, data: Any) -> None:
        """Show an image: a path, encoded bytes, a Pillow image, a numpy array or a tensor."""
        if self._main:
            self._shelf.keep(name, self._step, media.image(data))

    def log_figure(self, name: str, figure: Any) -> None:
        """Show a matplotlib or plotly figure."""
        if self._main:
            self._shelf.keep(name, self._step, media.figure(figure))

    def log_table(self, name: str, columns: Any, rows: Iterable[Sequence[Any]] | None = None) -> None:
        """Show a table: column names and rows, a list of mappings, or a data frame."""
        if self._main:
            self._shelf.keep(name, self._step, media.table(columns, rows))

    def note_bug(self, **about: Any) -> None:
        """A capsule of a failed step was written, by whichever rank: for whoever looks after the run."""
        self._spool.write("b", **about)

    def checkpoint(self, wait: bool = False, *, best: bool = False, metrics: Mapping[str, float] | None = None) -> None:
        """Save now; on every rank, at the same step. Returns at once unless told to wait for the disk.

        The newest one marked as `best` is kept beside the newest `keep_checkpoints`; `metrics` are shown with it.
        """
        self._check_alive()
        if self._training is None:
            raise UsageError("there is nothing to save yet", hint="run.prepare(model, optimizer, …) comes first")
        self._save(wait=wait, best=best, metrics=metrics)

    def aim(self, steps: int) -> None:
        """How many steps the training is meant to take, as far as it is known: shown as 100 %. It does not stop there."""
        self._total = steps

    def stop(self, reason: str = "stopped by the script") -> None:
        """Ask all ranks to save and stop at one step soon. Any rank may."""
        self._stop.request(reason)

    def loop(
        self,
        loader: Iterable[Batch],
        *,
        max_steps: int | None = None,
        epochs: int | None = None,
        desc: str | None = None,
    ) -> Iterator[Batch]:
        """Batches until `max_steps` global steps or `epochs` are done, or the run is to stop; shows how it goes.

        With neither given: init's max_steps, or one epoch.
        """
        self._check_alive()
        max_steps = self._options.max_steps if max_steps is None else max_steps
        epochs = 1 if max_steps is None and epochs is None else epochs
        self._aim(loader, max_steps, epochs)
        return loop.batches(self, loader, max_steps=max_steps, epochs=epochs, desc=desc)

    def epochs(self, count: int | None = None) -> Iterator[int]:
        """Indices of the epochs still to do: after a resume, from the one that was broken off. None: without end."""
        epoch = self._training.start_epoch if self._training is not None else 0
        self._epochs = count
        while (count is None or epoch < count) and not self.should_stop:
            self._epoch = epoch
            yield epoch
            epoch += 1

    def finish(self, *, status: str = "finished", why: str | None = None) -> None:
        """End the run: last save, last records. Safe to call again; a script that forgets is finished at its exit."""
        self._end(status, why, last_save=True)

    def stepped_since(self, step: int) -> bool:
        """Whether run.step was called since that global step."""
        return self._step != step or self._partial

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        status, why = outcome(error)
        self.finish(status=status, why=why)

    def end_at_exit(self, error: BaseException | None, *, unknown: bool = False) -> None:
        """End the run with the interpreter. A last save takes all ranks, and it is not known whether all will come.

        `unknown`: the script raised SystemExit, and its code is known to the parent process only. An agent or `shoal run`
        corrects the record if it was not 0; without either, only a run that reached its target counts as finished.
        """
        status, why = outcome(error)
        if unknown and not self._context.on_platform and self._total is not None and self._step < self._total:
            status, why = "stopped", "the script raised SystemExit before its last step"
        self._end(status, why, last_save=self._context.world_size == 1, surely=not unknown)

    def leave_to_parent(self) -> None:
        """In a forked child: files and records are the parent's."""
        self._finished = True
        self._spool.forget()

    def _end(self, status: str, why: str | None, *, last_save: bool, surely: bool = True) -> None:
        if self._finished or os.getpid() != self._pid:
            return
        self._finished = True
        if self._halted:
            status, why = "stopped", self.stop_reason
        clean = status != "failed"
        with _never_fatal("the last metrics"):
            self._behind.take(everything=clean)
        if self._training is not None:
            with _never_fatal("the last checkpoint"):
                if status == "finished" and last_save and self._saves_itself and self._step > self._saved_step:
                    self._training.checkpoint(self._step, self._last)
                self._training.close(_WRITE_S, save=clean)
        self._spool.flush()
        if self._main and (self._spool.is_open or self._context.on_platform):
            self._progress(done=status == "finished" and (surely or self._step == self._total))
            self._tell("f", i=self._step, status=status, why=why)
        if self._mirror is not None:
            self._mirror.close()
        self._stop.close()
        self._spool.close()
        if self._training is not None and clean:
            with _never_fatal("the process group"):
                from shoal.sdk.group import close_group

                close_group()
        self._on_finish()

    def _get_training(self) -> Training:
        if self._training is None:
            from shoal.sdk.training import Training

            self._training = Training(self._context, self._options, self._spool, on_resume=self._go_on_from)
        return self._training

    def _go_on_from(self, step: int) -> None:
        self._step = self._stop.step = self._saved_step = step

    def _check_alive(self) -> None:
        if self._finished:
            raise UsageError("this run is finished", hint="make a new one with shoal.init(...)")

    def _past_end(self) -> None:
        self._check_alive()
        raise SystemExit(self._stop.exit_code)

    def _written(self, step: int, numbers: dict[str, float], at: float) -> None:
        self._last = numbers
        self._spool.write_step(step, numbers, at)

    def _late(self, step: int, numbers: dict[str, Any], now: float) -> None:
        """Some numbers are still on the device: read them when they arrive; before a save, wait for them."""
        if self._main:
            self._behind.put(step, numbers, now)
            every = self._options.checkpoint_every
            self._behind.take(everything=every is not None and step % every == 0)

    def _tick(self, now: float) -> None:
        self._tick_at = now + _TICK_S
        self._stop.watch()
        self._stop.tick()
        if self._options.parallel == "swarm" and self.swarm is not None and self.swarm.stopped:
            self.stop("the swarm was stopped by its owner")
        if self._main:
            self._spool.check()
            self._progress(done=False)

    def _progress(self, *, done: bool) -> None:
        # A loop that was left counts its epoch as over: what was true at the stop is told.
        if not self._halted and self.epoch is not None:
            self._told_epoch = round(self.epoch, 4)
        self._tell("p", i=self._step, total=self._total, epoch=self._told_epoch, epochs=self._epochs, done=done)

    def _tell(self, kind: str, **fields: Any) -> None:
        if self._main:
            self._spool.write(kind, **fields)

    def _decide(self, step: int) -> None:
        decision = self._stop.decide(step)
        if decision.stop:
            self._progress(done=False)
            self._halted = True
        saves = decision.save and not self._is_pruned
        if saves:
            self._save()
        if decision.stop and self._main:
            saving = "saving and " if saves and self._training is not None else ""
            print(f"shoal: {self.stop_reason}: {saving}stopping after step {step}", file=sys.stderr, flush=True)

    @property
    def _is_pruned(self) -> bool:
        """Nobody will go on with a trial that fell behind. With several workers a save takes all of them, and not all may know yet."""
        return self._context.world_size == 1 and (self.stop_reason or "").startswith(PRUNED)

    def _save(self, *, wait: bool = False, best: bool = False, metrics: Mapping[str, float] | None = None) -> None:
        if self._training is not None:
            self._behind.take(everything=True)
            self._training.checkpoint(self._step, {**self._last, **(metrics or {})}, wait=wait, best=best)
            self._saved_step = self._step
            self._stop.saved()

    @property
    def _saves_itself(self) -> bool:
        return self._options.checkpoint_every is not None or self._options.checkpoint_every_s is not None

    def _aim(self, loader: Any, max_steps: int | None, epochs: int | None) -> None:
        """What is to be reached, as far as it is known: shown as 100 %."""
        by_epochs = None
        if epochs is not None:
            per_epoch = self._training.steps_per_epoch if self._training is not None else _length(loader)
            by_epochs = per_epoch * epochs if per_epoch else None
        known = [n for n in (max_steps, by_epochs) if n is not None]
        self._total = min(known) if known else None


def outcome(error: BaseException | None) -> tuple[str, str | None]:
    """Status and reason of a run that ends with this exception, or none."""
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return "finished", None
    if isinstance(error, SystemExit) and error.code == SKIPPED:
        return "skipped", None
    if isinstance(error, SystemExit):
        return "failed", f"exit code {error.code}" if isinstance(error.code, int) else str(error.code)
    if isinstance(error, KeyboardInterrupt):
        return "stopped", "KeyboardInterrupt"
    return "failed", f"{type(error).__name__}: {error}"[:500]


@contextlib.contextmanager
def _never_fatal(what: str) -> Iterator[None]:
    """At the end of a run nothing of ours may hide how the script itself ended."""
    try:
        yield
    except Exception as error:
        logger.warning("shoal: %s failed at the end of the run: %s: %s", what, type(error).__name__, error)


def _store() -> Any:
    from shoal.sdk.group import store

    found = store()
    if found is None:
        raise RuntimeError("there is no process group")
    return found


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None
