"""Implementation of `run.prepare` and `run.checkpoint`: the trained objects, the data positions, saving and resuming.

A save that is requested during an iteration is taken at the end of the iteration, that is when the loop fetches the next
batch or is left: only then have both optimizer and scheduler made their step, in whatever order the script calls them.
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
    from shoal.sdk.parallel import Parallel
    from shoal.sdk.samples.order import Micro
    from shoal.sdk.samples.sampler import Feed
    from shoal.sdk.setup import Setup

logger = logging.getLogger(__name__)

_PATIENCE = 1000
"""Maximum number of iterations a save is postponed while the script accumulates gradients without a step."""


class _Due(NamedTuple):
    step: int
    metrics: Mapping[str, float]
    may_skip: bool = True
    overlap: bool = True
    best: bool = False


class Training:
    """Training state of a run. Nothing here imports torch before the first `prepare`, `register` or `checkpoint`."""

    def __init__(
        self, context: Context, options: Options, spool: Spool, *, on_resume: Callable[[int], None] | None = None
    ):
        """Keep the arguments; `on_resume(step)` is called inside `prepare` when a checkpoint was restored."""
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

    # called by Run

    def prepare(self, objects: tuple[Any, ...]) -> tuple[Any, ...]:
        """Wrap and register the objects, and resume once there is a model. Collective over the ranks."""
        setup = self._ready()
        prepared = setup.prepare(objects)
        self._announce(setup)
        return prepared

    def register(self, *objects: Any) -> None:
        """Save and restore these objects unchanged: nothing is wrapped, the sample order stays the script's."""
        self._ready().register(objects)

    def restore(self) -> int:
        """Load the checkpoint into the registered objects. Return its step, or 0 if there is none."""
        setup = self._ready()
        setup.resume()
        self._announce(setup)
        return self.resumed_step

    @property
    def is_boundary(self) -> bool:
        """True if the current iteration completes a global step."""
        return self._setup is None or self._setup.accumulation.is_boundary

    @property
    def weight(self) -> float:
        """Weight of this iteration in the mean over the iterations of its global step: its number of samples."""
        driver = self._driver
        if driver is None or driver.now is None:
            return 1.0
        return float(driver.now.used)

    @property
    def replaying(self) -> bool:
        """True after a resume while the script's loop still skips epochs that were finished before.

        Evaluations are not recorded then: they were recorded before the resume.
        """
        driver = self._driver
        return driver is not None and self.resumed and not self._is_live and driver.skip + driver.skipped > 0

    def after_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Update the sample logs, and save if `checkpoint_every` divides the step. Run.step calls it once per global step."""
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
            self._save_due()

    def checkpoint(self, step: int, metrics: Mapping[str, float], *, wait: bool = False, best: bool = False) -> None:
        """Save at the end of the current iteration; at once between iterations or with `wait`.

        All ranks must call it at the same step.
        """
        self._step = step
        self._due = _Due(step, dict(metrics), may_skip=False, overlap=not wait, best=best)
        if wait:
            self._save_due(wait=True)
        elif not self._in_iteration:
            self._save_due()

    def at_iteration_end(self, action: Callable[[], None]) -> None:
        """Call `action` at the end of the current iteration, after a save that is due there; at once between iterations."""
        if self._in_iteration:
            self._actions.append(action)
        else:
            action()

    def close(self, timeout_s: float | None = None, *, save: bool = True) -> bool:
        """Take a save that is due (not with save=False) and wait for the writer. Return whether all is on disk."""
        from shoal.sdk.samples.loader import let_go

        setup = self._setup
        if setup is None or self._closed:
            return True
        if save and self._due is not None:
            self._save_due()
        self._closed = True
        setup.parallel.close()
        for loader in setup.parts.loaders:
            let_go(loader)
        for _, ledger in setup.ledgers:
            ledger.flush()
        return setup.saver.close(timeout_s, hopeless=not save)

    # properties

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
        """Number of epochs finished when this process started.

        Reading it declares that the script skips them itself: the loaders then do not skip them.
        """
        driver = self._driver
        if driver is None:
            return 0
        if not self._is_live:
            driver.skip = driver.skipped = 0
        return driver.epoch

    @property
    def epoch(self) -> float | None:
        """Number of epochs done, with the fraction of the current one, of the loader that drives the steps."""
        driver = self._driver
        if driver is None:
            return None
        epoch, batch = driver.position
        return epoch + batch / driver.batches if driver.batches else float(epoch)

    @property
    def steps_per_epoch(self) -> int | None:
        return None if self._driver is None else self._driver.batches

    def total_steps(self, epochs: int | None = None) -> int | None:
        """Return max_steps, else `epochs` times the steps of one epoch; None if unknown."""
        if self._options.max_steps is not None:
            return self._options.max_steps
        return epochs * self.steps_per_epoch if epochs is not None and self.steps_per_epoch is not None else None

    @property
    def device(self) -> Any:
        return self._ready().device

    @property
    def last_checkpoint(self) -> Path | None:
        """Newest checkpoint committed by this process; None on ranks other than 0."""
        return None if self._setup is None else self._setup.saver.last

    @property
    def parallel(self) -> Parallel:
        return self._ready().parallel

    @property
    def session(self) -> str:
        """Random identifier of this attempt, the same on every rank."""
        return str(self._ready().session)

    @property
    def batch_samples(self) -> int | None:
        """Number of samples of the current iteration that count on this rank; None if Shoal does not order the loader."""
        from shoal.sdk.samples.sampler import DealtFeed

        driver = self._driver
        return driver.now.used if isinstance(driver, DealtFeed) and driver.now is not None else None

    # called by prepared loaders (loader.Host)

    def pass_begins(self, feed: Feed) -> None:
        if feed is not self._driver:
            return
        self._is_live = True
        self._restore_generators()

    def batch_delivered(self, feed: Feed, micro: Micro) -> None:
        setup = self._ready()
        for other, ledger in setup.ledgers:
            if other is feed:
                ledger.add(micro.epoch, micro.batch, micro.indices if micro.used else [])
        if feed is not self._driver:
            return
        self._in_iteration = True
        setup.accumulation.begin(micro)
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
        setup.accumulation.abandon()
        setup.accumulation.schedules = 0

    def pass_skipped(self, feed: Feed) -> None:
        """Note that the script's loop has skipped an epoch that was finished before the resume."""
        self._is_live = False
        if feed.skip == 0:
            setup = self._ready()
            setup.accumulation.replayed_schedules = setup.schedules_made

    def shortened(self, feed: Feed) -> bool:
        """Check whether this pass, for example an evaluation, belongs to a skipped epoch: one batch is enough then."""
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
        """Restore the random generators again right before the first batch after a resume.

        Numbers that the script has drawn since `prepare` were also drawn before the checkpoint.
        """
        setup, driver = self._setup, self._driver
        if setup is not None and driver is not None and (driver.epoch, driver.batch) == driver.resumed_at:
            setup.restore_generators()

    def _before_step(self) -> None:
        """Complete the copy of a running save: an optimizer is about to change the parameters."""
        setup = self._ready()
        setup.generators = None
        for feed in setup.parts.feeds:
            feed.use()
        setup.saver.before_step()

    def _over(self, *, leaving: bool = False) -> None:
        """End the iteration and take a save that is due.

        Accumulated gradients are not part of a checkpoint: while there are some, the save is postponed.
        """
        self._in_iteration = False
        setup = self._ready()
        if setup.saver.is_torn and self._due is None:
            self._due = _Due(self._step, {}, may_skip=False, overlap=False)
        if self._due is not None:
            clean = setup.accumulation.stepped or not setup.parts.optimizers or self._put_off >= _PATIENCE
            if clean or (leaving and not self._due.may_skip):
                self._save_due()
            elif leaving:
                self._due = None
            else:
                self._put_off += 1
        actions, self._actions = self._actions, []
        for action in actions:
            action()

    def _save_due(self, *, wait: bool = False) -> None:
        due, self._due, self._put_off = self._due, None, 0
        setup = self._ready()
        if due is None or self._closed:
            return
        for _, ledger in setup.ledgers:
            ledger.flush()
        self._spool.flush()  # the metrics up to a checkpoint are on disk before the checkpoint
        about = setup.about(due.step, due.metrics) | ({"best": True} if due.best else {})
        setup.save(due.step, about, may_skip=due.may_skip, overlap=due.overlap, wait=wait)
