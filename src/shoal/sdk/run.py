"""`Run`, the object a training script works with: it joins the spool, the stop and the training. The script keeps its loop."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.core import records
from shoal.core.errors import UsageError
from shoal.sdk import loop, media, values
from shoal.sdk.context import Context
from shoal.sdk.drill import rehearsal
from shoal.sdk.media_methods import MediaMethods
from shoal.sdk.options import Options
from shoal.sdk.run_info import RunInfo
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
"""Seconds to wait at most, at the end of the run, for a checkpoint that is still being written."""


class Run(MediaMethods, RunInfo):
    """One training run, made by `shoal.init`; also a context manager that finishes the run on exit."""

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
        self._shown_epoch: float | None = None
        self._pid = os.getpid()
        self._tick_at = 0.0
        self._mean = values.Mean()
        self._partial = False
        self._behind = values.Behind(self._written)
        self._shelf = media.Shelf(context, self._spool)
        if options.config:
            self._record(records.Config(values=dict(options.config)))
        self._stop.install()

    def prepare(self, *objects: Any) -> Any:
        """Prepare models, optimizers, schedulers, loaders and scalers for this worker.

        Models are moved to the device and wrapped, loaders deal each worker its share of the samples. A checkpoint to resume
        from is loaded here: `global_step` may be above 0 afterwards. All ranks call it together, with the same objects.

        Args:
            *objects: The objects to prepare. Anything with `state_dict` and `load_state_dict` is saved and restored.

        Returns:
            The prepared objects in the order given; a single object if one was given. Use these, not the originals.

        Example: `model, optimizer, loader = run.prepare(model, optimizer, loader)`
        """
        self._check_alive()
        if self._rehearsal is not None:
            self._rehearsal.before_prepare(self, objects)
        prepared = self._get_training().prepare(objects)
        self._stop.every_s = self._options.checkpoint_every_s
        self._stop.saved()
        return prepared[0] if len(objects) == 1 else prepared

    def step(self, metrics: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        """Record that one iteration is done. Call it once per iteration, on every rank.

        With gradient accumulation, the metrics of the iterations of one global step are averaged, weighted by their samples.
        Calling it again after the run was told to stop (see `should_stop`) raises SystemExit.

        Args:
            metrics: Metrics by name, for names that are no Python identifiers.
            **named: Ints, floats, 0-dim tensors or numpy scalars. Tensors on a GPU are read later, without a synchronisation.

        Example: `run.step(loss=loss)` or `run.step({"train/loss": loss})`
        """
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
                numbers = self._mean.pop()
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
        """Record the results of an evaluation at the current step.

        Args:
            metrics: Results by name, for names that are no Python identifiers.
            **named: Results by name: numbers or short texts.

        Example: `run.evaluate({"eval/loss": eval_loss, "eval/accuracy": 0.93})`
        """
        self._check_alive()
        found = {k: values.now(values.plain_or_text(k, v)) for k, v in values.merge(metrics, named).items()}
        if self._training is not None and self._training.replaying:
            return
        self._behind.write_arrived(everything=True)
        self._record(records.Evaluation(step=self._step, values=quoted(found)))

    def note_bug(self, **about: Any) -> None:
        """Record that a capsule (the saved inputs) of a failed step was written. Any rank may call it."""
        self._spool.put(records.Bug(**about))

    def checkpoint(self, wait: bool = False, *, best: bool = False, metrics: Mapping[str, float] | None = None) -> None:
        """Save a checkpoint at the end of the current iteration. Call it on every rank, at the same step.

        Args:
            wait: Save immediately and wait until the checkpoint is on disk. Default: write it in the background.
            best: Mark it as the best so far. The newest best one is kept in addition to the newest `keep_checkpoints`.
            metrics: Metrics to show with the checkpoint, in addition to those of the last step.

        Example: `run.checkpoint(best=True, metrics={"eval/loss": eval_loss})`
        """
        self._check_alive()
        if self._training is None:
            raise UsageError("there is nothing to save yet", hint="call run.prepare(model, optimizer, …) first")
        self._save(wait=wait, best=best, metrics=metrics)

    def aim(self, steps: int) -> None:
        """Set the number of global steps that is shown as 100 %. The training does not stop there."""
        self._total = steps

    def stop(self, reason: str = "stopped by the script") -> None:
        """Ask all ranks to save a checkpoint and stop at the same step, soon. Any rank may call it. `reason` is shown.

        Example: `run.stop("the loss diverged")`
        """
        self._stop.request(reason)

    def loop(
        self,
        loader: Iterable[Batch],
        *,
        max_steps: int | None = None,
        epochs: int | None = None,
        desc: str | None = None,
    ) -> Iterator[Batch]:
        """Iterate over batches until the training is done or has to stop, and show progress on stderr.

        After a resume it continues at the sample where the checkpoint was taken. Call `step` once per batch.

        Args:
            loader: The loader that `prepare` returned, or any iterable of batches.
            max_steps: Global steps to train for, counted over all attempts. Default: `max_steps` of `shoal.init`.
            epochs: Epochs to train for. Default: no limit with `max_steps`, else one epoch.
            desc: Text at the start of the progress line.

        Example: `for batch in run.loop(loader, epochs=3): …`
        """
        self._check_alive()
        max_steps = self._options.max_steps if max_steps is None else max_steps
        epochs = 1 if max_steps is None and epochs is None else epochs
        self._aim(loader, max_steps, epochs)
        return loop.batches(self, loader, max_steps=max_steps, epochs=epochs, desc=desc)

    def epochs(self, count: int | None = None) -> Iterator[int]:
        """Yield the indices of the epochs that are still to do, until the run has to stop.

        After a resume the first one is the epoch in which the checkpoint was taken. `count` None: no limit.

        Example: `for epoch in run.epochs(10): …`
        """
        epoch = self._training.start_epoch if self._training is not None else 0
        self._epochs = count
        while (count is None or epoch < count) and not self.should_stop:
            self._epoch = epoch
            yield epoch
            epoch += 1

    def finish(self, *, status: str = "finished", why: str | None = None) -> None:
        """End the run: take the last checkpoint, wait until it is on disk, and write the last records.

        Calling it again does nothing. If the script does not call it, the run is finished when the interpreter exits.

        Args:
            status: "finished", "stopped", "skipped" or "failed".
            why: Reason to show with the run.
        """
        self._end(status, why, last_save=True)

    def stepped_since(self, step: int) -> bool:
        """Check whether `step` was called since that global step."""
        return self._step != step or self._partial

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        status, why = outcome(error)
        self.finish(status=status, why=why)

    def end_at_exit(self, error: BaseException | None, *, unknown: bool = False) -> None:
        """End the run when the interpreter exits. With several ranks no last checkpoint is taken: it needs all of them.

        `unknown`: the script raised SystemExit itself, so that only the parent process knows its code. An agent or `shoal
        run` corrects the record if the code was not 0; without either, only a run that reached its target is finished.
        """
        status, why = outcome(error)
        if unknown and not self._context.on_platform and self._total is not None and self._step < self._total:
            status, why = "stopped", "the script raised SystemExit before its last step"
        self._end(status, why, last_save=self._context.world_size == 1, surely=not unknown)

    def abandon_in_child(self) -> None:
        """Give up the run in a forked child: its files and records belong to the parent."""
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
            self._behind.write_arrived(everything=clean)
        if self._training is not None:
            with _never_fatal("the last checkpoint"):
                if status == "finished" and last_save and self._saves_itself and self._step > self._saved_step:
                    self._training.checkpoint(self._step, self._last)
                self._training.close(_WRITE_S, save=clean)
        self._spool.flush()
        if self._main and (self._spool.is_open or self._context.on_platform):
            self._progress(done=status == "finished" and (surely or self._step == self._total))
            self._record(records.Finish(step=self._step, status=status, why=why))
        if self._mirror is not None:
            self._mirror.close()
        self._stop.close()
        self._spool.close()
        if self._training is not None and clean:
            with _never_fatal("the process group"):
                from shoal.sdk.ranks.group import close_group

                close_group()
        self._on_finish()

    def _get_training(self) -> Training:
        if self._training is None:
            from shoal.sdk.training import Training

            self._training = Training(self._context, self._options, self._spool, on_resume=self._resume_at)
        return self._training

    def _resume_at(self, step: int) -> None:
        self._step = self._stop.step = self._saved_step = step

    def _check_alive(self) -> None:
        if self._finished:
            raise UsageError("this run is finished", hint="start a new one with shoal.init(...)")

    def _past_end(self) -> None:
        self._check_alive()
        raise SystemExit(self._stop.exit_code)

    def _written(self, step: int, numbers: dict[str, float], at: float) -> None:
        self._last = numbers
        self._spool.write_step(step, numbers, at)

    def _late(self, step: int, numbers: dict[str, Any], now: float) -> None:
        """Queue metrics that are still on the device and write those that have arrived; before a save, wait for all."""
        if self._main:
            self._behind.put(step, numbers, now)
            every = self._options.checkpoint_every
            self._behind.write_arrived(everything=every is not None and step % every == 0)

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
        # Leaving the loop counts the epoch as complete; record the value from before the stop.
        if not self._halted and self.epoch is not None:
            self._shown_epoch = round(self.epoch, 4)
        epoch, epochs = self._shown_epoch, self._epochs
        self._record(records.Progress(step=self._step, total=self._total, epoch=epoch, epochs=epochs, done=done))

    def _record(self, record: records.Record) -> None:
        if self._main:
            self._spool.put(record)

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
        """True for a pruned trial with one worker: nobody resumes it. With several workers, not all may know it yet."""
        return self._context.world_size == 1 and (self.stop_reason or "").startswith(PRUNED)

    def _save(self, *, wait: bool = False, best: bool = False, metrics: Mapping[str, float] | None = None) -> None:
        if self._training is not None:
            self._behind.write_arrived(everything=True)
            self._training.checkpoint(self._step, {**self._last, **(metrics or {})}, wait=wait, best=best)
            self._saved_step = self._step
            self._stop.saved()

    @property
    def _saves_itself(self) -> bool:
        return self._options.checkpoint_every is not None or self._options.checkpoint_every_s is not None

    def _aim(self, loader: Any, max_steps: int | None, epochs: int | None) -> None:
        """Set the step that is shown as 100 % from `max_steps` and `epochs`, as far as they are known."""
        by_epochs = None
        if epochs is not None:
            per_epoch = self._training.steps_per_epoch if self._training is not None else _length(loader)
            by_epochs = per_epoch * epochs if per_epoch else None
        known = [n for n in (max_steps, by_epochs) if n is not None]
        self._total = min(known) if known else None


def outcome(error: BaseException | None) -> tuple[str, str | None]:
    """Return status and reason of a run that ends with this exception, or without one (None)."""
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
    """Log an exception instead of raising it: an error of ours must not hide how the script itself ended."""
    try:
        yield
    except Exception as error:
        logger.warning("shoal: %s failed at the end of the run: %s: %s", what, type(error).__name__, error)


def _store() -> Any:
    from shoal.sdk.ranks.group import store

    found = store()
    if found is None:
        raise RuntimeError("there is no process group")
    return found


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None
