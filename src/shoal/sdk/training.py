"""Everything behind `run.prepare` and `run.checkpoint`: what is trained, where its data stands, how it is saved and found again.

A save that is asked for inside an iteration is taken when the iteration is over, that is when the loop asks for the next
batch or is left: only then have optimizer and scheduler both made their step, in whatever order the script calls them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.sdk.context import Context
from shoal.sdk.options import Options
from shoal.sdk.spool import Spool

if TYPE_CHECKING:
    from shoal.sdk.order import Micro
    from shoal.sdk.parallel import Parallel
    from shoal.sdk.sampler import Feed
    from shoal.sdk.setup import Setup

logger = logging.getLogger(__name__)

_PATIENCE = 1000
"""Iterations a save is put off because the script has gathered gradients but made no step."""


class _Due(NamedTuple):
    step: int
    metrics: Mapping[str, float]
    may_skip: bool = True
    overlap: bool = True
    best: bool = False


class Training:
    """One per run. Nothing here imports torch before the first `prepare`, `register` or `checkpoint`."""

    def __init__(
        self, context: Context, options: Options, spool: Spool, *, on_resume: Callable[[int], None] | None = None
    ):
        """`on_resume(step)` is called inside `prepare` when a checkpoint was restored."""
        self._context, self._options, self._spool = context, options, spool
        self._on_resume = on_resume or (lambda step: None)
        self._setup: Setup | None = None
        self._due: _Due | None = None
        self._put_off = 0
        self._in_iteration = False
        self._is_live = False
        self._closed = False
        self._step = 0
        self._actions: list[Callable[[], None]] = []

    # what a run calls

    def prepare(self, objects: tuple[Any, ...]) -> tuple[Any, ...]:
        """Wrap, register and, at the first model, resume. Collective over the ranks."""
        setup = self._ready()
        prepared = setup.prepare(objects)
        self._announce(setup)
        return prepared

    def register(self, *objects: Any) -> None:
        """Save and restore these objects as they are: nothing is wrapped, no order of data is imposed."""
        self._ready().register(objects)

    def restore(self) -> int:
        """Load the checkpoint to resume from into what is registered; the step reached, 0 if there is none."""
        setup = self._ready()
        setup.resume()
        self._announce(setup)
        return self.resumed_step

    @property
    def is_boundary(self) -> bool:
        """Whether the iteration just done completes a global step."""
        return self._setup is None or self._setup.accumulation.is_boundary

    @property
    def weight(self) -> float:
        """Of this iteration in the mean over those of its global step: its samples."""
        driver = self._driver
        if driver is None or driver.now is None:
            return 1.0
        return float(driver.now.used)

    @property
    def replaying(self) -> bool:
        """Resumed, and the script's loop is still passing over epochs that were finished before: evaluations are not news."""
        driver = self._driver
        return driver is not None and self.resumed and not self._is_live and driver.skip + driver.skipped > 0

    def after_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Once per global step, from run.step: the ledger, and a save if `checkpoint_every` divides the step."""
        self._step = step
        setup = self._setup
        if setup is None:
            return
        setup.check_data()
        setup.parallel.note(metrics)
        for feed in setup.parts.feeds:
            feed.use()
        for feed, ledger in setup.ledgers:
            if feed.is_open:
                ledger.step(step)
        if self._due is not None:
            self._due = self._due._replace(step=step, metrics=dict(metrics))
        elif self._options.checkpoint_every is not None and step % self._options.checkpoint_every == 0:
            self._due = _Due(step, dict(metrics))
        if self._due is not None and not self._in_iteration:
            self._take()

    def checkpoint(self, step: int, metrics: Mapping[str, float], *, wait: bool = False, best: bool = False) -> None:
        """Save when the current iteration is over (at once between iterations, or with `wait`). All ranks, at the same step."""
        self._step = step
        self._due = _Due(step, dict(metrics), may_skip=False, overlap=not wait, best=best)
        if wait:
            self._take(wait=True)
        elif not self._in_iteration:
            self._take()

    def at_iteration_end(self, action: Callable[[], None]) -> None:
        """Call this when the current iteration is over, after a save that is due there; at once between iterations."""
        if self._in_iteration:
            self._actions.append(action)
        else:
            action()

    def close(self, timeout_s: float | None = None, *, save: bool = True) -> bool:
        """Take a save that is due (not with save=False) and wait for the writing; whether all of it is on disk."""
        from shoal.sdk.loader import let_go

        setup = self._setup
        if setup is None or self._closed:
            return True
        if save and self._due is not None:
            self._take()
        self._closed = True
        setup.parallel.close()
        for loader in setup.parts.loaders:
            let_go(loader)
        for _, ledger in setup.ledgers:
            ledger.flush()
        return setup.saver.close(timeout_s, hopeless=not save)

    # how it stands

    @property
    def resumed_step(self) -> int:
        return 0 if self._setup is None else self._setup.resumed_step

    @property
    def resumed(self) -> bool:
        return self.resumed_from is not None

    @property
    def resumed_from(self) -> Path | None:
        return None if self._setup is None else self._setup.resumed_from

    @property
    def start_epoch(self) -> int:
        """Epochs finished when this process started. Reading it says the script skips them itself."""
        driver = self._driver
        if driver is None:
            return 0
        if not self._is_live:
            driver.skip = driver.skipped = 0
        return driver.epoch

    @property
    def epoch(self) -> float | None:
        """Epochs done, with the part of the current one, of the loader that drives the steps."""
        driver = self._driver
        if driver is None:
            return None
        epoch, batch = driver.position
        return epoch + batch / driver.batches if driver.batches else float(epoch)

    @property
    def steps_per_epoch(self) -> int | None:
        return None if self._driver is None else self._driver.batches

    def total_steps(self, epochs: int | None = None) -> int | None:
        """max_steps, or `epochs` times the steps of one epoch, if that is known."""
        if self._options.max_steps is not None:
            return self._options.max_steps
        return epochs * self.steps_per_epoch if epochs is not None and self.steps_per_epoch is not None else None

    @property
    def device(self) -> Any:
        return self._ready().device

    @property
    def last_checkpoint(self) -> Path | None:
        """The newest one committed by this process; known on rank 0."""
        return None if self._setup is None else self._setup.saver.last

    @property
    def parallel(self) -> Parallel:
        return self._ready().parallel

    @property
    def session(self) -> str:
        """The same on every rank, another one in every attempt."""
        return str(self._ready().session)

    @property
    def batch_samples(self) -> int | None:
        """Samples of the iteration at hand that count on this rank; None where the loader's order is not ours."""
        from shoal.sdk.sampler import DealtFeed

        driver = self._driver
        return driver.now.used if isinstance(driver, DealtFeed) and driver.now is not None else None

    # what prepared loaders tell (loader.Host)

    def pass_begins(self, feed: Feed) -> None:
        if feed is not self._driver:
            return
        self._is_live = True
        self._restore_generators()

    def took(self, feed: Feed, micro: Micro) -> None:
        setup = self._ready()
        for other, ledger in setup.ledgers:
            if other is feed:
                ledger.took(micro.epoch, micro.batch, micro.indices if micro.used else [])
        if feed is not self._driver:
            return
        self._in_iteration = True
        setup.accumulation.take(micro)
        if micro.is_first:
            self._restore_generators()

    def iteration_over(self, feed: Feed) -> None:
        if feed is self._driver:
            self._over()

    def pass_ended(self, feed: Feed) -> None:
        setup = self._ready()
        if not feed.stepped:
            for other, ledger in setup.ledgers:
                if other is feed:
                    ledger.forget()
        if feed is not self._driver or self._closed:
            return
        self._over(leaving=feed.is_open)
        setup.accumulation.leave()
        setup.accumulation.schedules = 0

    def pass_skipped(self, feed: Feed) -> None:
        """The script's loop has passed over an epoch that was finished before."""
        self._is_live = False
        if feed.skip == 0:
            setup = self._ready()
            setup.accumulation.replayed_schedules = setup.schedules_made

    def shortened(self, feed: Feed) -> bool:
        """Whether this pass belongs to an epoch that is only passed over: one batch will do."""
        return feed is not self._driver and self.replaying and feed.batch == 0

    # inside

    @property
    def _driver(self) -> Feed | None:
        return None if self._setup is None else self._setup.driver

    def _ready(self) -> Setup:
        if self._setup is None:
            from shoal.sdk.setup import Setup

            self._setup = Setup(self._context, self._options, self._spool, self)
            self._setup.accumulation.is_replaying = lambda: self.replaying
            self._setup.accumulation.on_step = self._before_step
        return self._setup

    def _announce(self, setup: Setup) -> None:
        if setup.is_news:
            setup.is_news = False
            self._step = setup.resumed_step
            self._on_resume(setup.resumed_step)

    def _restore_generators(self) -> None:
        """Again right before the first batch: whatever the script drew on its way here, it had drawn before."""
        setup, driver = self._setup, self._driver
        if setup is not None and driver is not None and (driver.epoch, driver.batch) == driver.resumed_at:
            setup.restore_generators()

    def _before_step(self) -> None:
        """An optimizer is about to change parameters."""
        setup = self._ready()
        setup.generators = None
        for feed in setup.parts.feeds:
            feed.use()
        setup.saver.before_step()

    def _over(self, *, leaving: bool = False) -> None:
        """The iteration is over. Gradients that wait for more of them are not saved: then the save waits too."""
        self._in_iteration = False
        setup = self._ready()
        if setup.saver.is_torn and self._due is None:
            self._due = _Due(self._step, {}, may_skip=False, overlap=False)
        if self._due is not None:
            clean = setup.accumulation.stepped or not setup.parts.optimizers or self._put_off >= _PATIENCE
            if clean or (leaving and not self._due.may_skip):
                self._take()
            elif leaving:
                self._due = None
            else:
                self._put_off += 1
        actions, self._actions = self._actions, []
        for action in actions:
            action()

    def _take(self, *, wait: bool = False) -> None:
        due, self._due, self._put_off = self._due, None, 0
        setup = self._ready()
        if due is None or self._closed:
            return
        for _, ledger in setup.ledgers:
            ledger.flush()
        self._spool.flush()  # what led to a checkpoint is on disk before it
        about = setup.about(due.step, due.metrics) | ({"best": True} if due.best else {})
        setup.save(due.step, about, may_skip=due.may_skip, overlap=due.overlap, wait=wait)
