"""Training loop. A subclass defines the loss of a batch and the data; the rest is here, in order of execution."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from shoal.core.errors import Refused, UsageError
from shoal.sdk.ranks.group import object_group
from shoal.sdk.ranks.store import RankStore
from shoal.sdk.run import Run
from shoal.sdk.saving.rng import raw_rng_state
from shoal.sdk.start import current, init
from shoal.sdk.trial import is_trial, skip_trial
from shoal.train import schedule, validate
from shoal.train.batch import Reading, read_result, to_device
from shoal.train.bug import Capsules, NonFiniteLoss
from shoal.train.console_log import ConsoleLog
from shoal.train.ema import Ema
from shoal.train.gradients import Gradient, StepTotals, Totals, all_agree, sample_count
from shoal.train.model import load_weights
from shoal.train.optim import make_optimizer
from shoal.train.params import Params
from shoal.train.precision import Precision
from shoal.train.source import Piece, Source
from shoal.train.state import State
from shoal.train.watch import Watch

torch: Any = import_module("torch")

_LAST_GAP = 0.1
"""Share of the evaluation interval. A final evaluation is made only if more than this has passed since the last one."""


class Outcome(NamedTuple):
    """Result of `Trainer.fit`."""

    reason: str
    """"finished", "early_stop", "stopped" or "out_of_data"."""
    steps: int
    seen: int
    best: float | None


class Trainer:
    """Trainer of a model. Override `training_data` and `train_batch`; `evaluation_data` or `evaluate` to evaluate.

    Args:
        params: The parameters, without Ranges.
        model: A module.
        optimizer: An optimizer of the model's parameters; by default the one that `params` describes.

    Raises UsageError for invalid parameters, and Refused (in a sweep: skips the trial) if the model exceeds `max_model_size`.

    Example:
        >>> class MyTrainer(Trainer):
        ...     def training_data(self):
        ...         return dataset
        ...     def train_batch(self, batch):
        ...         x, labels = batch
        ...         return torch.nn.functional.cross_entropy(self.model(x), labels)
        >>> outcome = MyTrainer(Params(epochs=2), model).fit()
    """

    run: Run

    def __init__(self, params: Params, model: Any, optimizer: Any = None):
        params.check()
        if params.ranges:
            raise UsageError(
                f"{', '.join(params.ranges)} has a Range of values, but a trainer needs a single value",
                hint="train each variant: for variant in params.variants(): …",
            )
        size = sum(p.numel() for p in model.parameters())
        if params.max_model_size is not None and size > params.max_model_size:
            _too_large(f"the model has {size:,} parameters, more than max_model_size={params.max_model_size:,}")
        self.params, self.model = params, model
        self.optimizer = optimizer or make_optimizer(
            params.optimizer, model, lr=params.lr, weight_decay=params.weight_decay
        )
        self.state = State()

    # --- for subclasses ---

    def train_batch(self, batch: Any) -> Any:
        """Return the loss of a batch that is on the device.

        Returns the mean loss, (loss, samples), or {"loss": …, "samples": …, "figures": {…}}. Override it unless the model's
        output is the loss.

        Example:
            >>> def train_batch(self, batch):
            ...     x, labels = batch
            ...     return torch.nn.functional.cross_entropy(self.model(x), labels)
        """
        return self.model(batch)

    def training_data(self) -> Any:
        """Return a DataLoader or Dataset, which is distributed to the workers, or an iterator of (epoch, batch).

        An iterator must yield each worker's own batches; those of shoal.train.data do.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a training_data()")

    def evaluation_data(self) -> Any:
        """Return a DataLoader or Dataset to evaluate on; None: no evaluation."""
        return None

    def evaluate_batch(self, batch: Any) -> Any:
        """Return a number, or several by name, each the mean over a batch of evaluation data; by default the loss."""
        return {"loss": read_result(self.train_batch(batch)).loss}

    def evaluate(self) -> Any:
        """Return a number (smaller is better), or several by name.

        An override runs on the main worker only, and the others wait for it; a sharded model is evaluated on all workers.
        """
        plan = self.run.parallel
        share = validate.share_of(
            self._evaluation_data,
            self.params.batch_size,
            rank=plan.data_rank,
            world=plan.data_world,
            same_count=self._is_sharded,
        )
        mine = validate.totals(share, self.evaluate_batch, self.run.device)
        return validate.means(self._board.gather(mine))

    def early_stop(self, state: State) -> bool:
        """Return True to end the training. It is called after every step on every worker; one True is enough."""
        return self.params.patience is not None and state.since_best >= self.params.patience

    def run_options(self) -> dict[str, Any]:
        """Return the arguments of shoal.init for this training."""
        params = self.params
        return {
            "seed": params.seed,
            "deterministic": params.deterministic,
            "accumulate": params.accumulate,
            "keep_checkpoints": params.keep_models,
            "config": params.to_dict(),
            "parallel": params.parallel,
            "mesh": params.mesh,
            "trackers": params.trackers,
        }

    def target_samples(self) -> int:
        """Return the number of samples at which the training ends and the learning rate reaches its final value."""
        if self.params.max_steps is not None:
            return self.params.max_steps * self._source.step_samples
        return int((self.params.epochs or 0) * self._source.epoch_samples)

    def on_start(self) -> None:
        """Hook before the first step."""

    def on_step(self, figures: Mapping[str, float]) -> None:
        """Hook after every step, with its loss and figures."""

    def on_evaluated(self, values: Mapping[str, float], *, is_best: bool) -> None:
        """Hook after every evaluation."""

    def on_end(self, outcome: Outcome) -> None:
        """Hook after the last step."""

    # --- the loop ---

    def fit(self) -> Outcome:
        """Train until the end, an early stop, a stop request or the end of the data; resume from a checkpoint if there is one.

        Uses the run of `shoal.init` if the script has started one, else starts its own.

        Example:
            >>> outcome = trainer.fit()
            >>> print(outcome.reason, outcome.best)
        """
        if capsule := os.environ.get("SHOAL_REPLAY"):
            from shoal.train.replay import run_again

            return run_again(self, Path(capsule))
        given = current()
        self.run = given or init(**self.run_options())
        with self.run if given is None else nullcontext():
            self._set_up()
            self.on_start()
            try:
                with closing(self._source.pieces()) as pieces:
                    outcome = self._train(pieces)
            finally:
                self._console.end(self.state)
            self.on_end(outcome)
        return outcome

    def _set_up(self) -> None:
        params, run = self.params, self.run
        if params.initial_model is not None:
            load_weights(self.model, params.initial_model)
        for group in self.optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.model, self.optimizer = run.prepare(self.model, self.optimizer)
        self._board = RankStore(run.rank, run.world_size, run.session)
        self._group = object_group()
        self._precision = Precision(params.amp, run.device)
        if self._precision.scales:
            run.prepare(self._precision.scaler)
        self._ema = self._average()
        run.prepare(self.state, *([self._ema] if self._ema else []))
        self._source = Source(run, self.training_data(), params)
        by_sample = params.true_gradient and not self._source.is_exact
        self._gradient = Gradient(by_sample=by_sample, world_size=run.parallel.data_world)
        self._shares = run.parallel.data_world if run.parallel.name != "none" else None
        self._evaluation_data = self.evaluation_data()
        self._target = self.target_samples()
        self._checked_at = 0
        self._ratio = schedule.make(params, target=self._target, epoch_samples=lambda: self._source.epoch_samples)
        self._gap = params.eval_every_samples or (self._source.epoch_samples if self._evaluates else 0)
        self._capsules = Capsules(run.output_dir / "bug", run.rank)
        self._watch = Watch(self.model, device=run.device)
        self._console = ConsoleLog(run)
        self._console.begin(self._plain, self.state)

    def _train(self, pieces: Iterator[Piece]) -> Outcome:
        with torch.autograd.set_detect_anomaly(self.params.detect_anomaly):
            self.model.train()
            while not (reason := self._is_over()):
                self.optimizer.zero_grad()
                tally = self._gather_gradient(pieces)
                if tally is None:
                    reason = "stopped" if self.run.should_stop else "out_of_data"
                    break
                totals = tally.over_all(self._group, self.run.world_size, self._shares)
                self._update(totals, tally.pieces)
                self._log_step(totals, tally)
                if self._is_evaluation_due(1.0):
                    self._evaluate()
        if reason != "stopped" and self._is_evaluation_due(_LAST_GAP):
            self._evaluate()
        return Outcome(reason, self.state.steps, self.state.seen, self.state.best)

    def _is_over(self) -> str:
        """Return the reason why the training is over, or an empty string."""
        steps = self.params.max_steps
        if self.state.seen >= self._target or (steps and self.state.steps >= steps):
            return "finished"
        if self.run.should_stop:
            return "stopped"
        return "early_stop" if self._stops_early() else ""

    def _stops_early(self) -> bool:
        """Call `early_stop`, once after every step; all workers get the same result."""
        if self.state.steps == self._checked_at:
            return False
        self._checked_at = self.state.steps
        stops = bool(self.early_stop(self.state))
        return not all_agree(not stops, self._group, self.run.world_size) if self._may_differ else stops

    @property
    def _may_differ(self) -> bool:
        """True if early_stop is overridden and may thus use more than the state, which is the same on every worker."""
        return type(self).early_stop is not Trainer.early_stop

    def _gather_gradient(self, pieces: Iterator[Piece]) -> StepTotals | None:
        """Accumulate the gradient of all mini-batches of a step; return None if a worker has run out of data."""
        tally = StepTotals(by_sample=self._gradient.by_sample or self._source.is_exact)
        while True:
            with self._watch.loading():
                piece = next(pieces, None)
            if self._source.may_end_early and not all_agree(piece is not None, self._group, self.run.world_size):
                return None
            if piece is None:
                return None
            self._backward(piece, tally)
            if piece.is_last:
                return tally

    def _backward(self, piece: Piece, tally: StepTotals) -> None:
        rng = raw_rng_state()
        batch = to_device(piece.batch, self.run.device)
        try:
            with self._precision.forward():
                result = read_result(self.train_batch(batch))
            samples = piece.samples
            if samples is None:
                samples = sample_count(batch) if result.samples is None else result.samples
            reading = Reading(result)
            # Reading a device's loss before the backward pass is queued would leave the device without work. Afterwards it
            # waits for the forward pass only. No weight has changed by then, so that a capsule still has those of this step.
            if not reading.is_late or self.params.detect_anomaly:
                self._check_finite(reading)
            with self._watch.backward(exchanges=piece.is_last):
                self._precision.backward(self._gradient.weigh(result.loss, samples))
            self._check_finite(reading)
        except Exception as error:
            where = {"step": self.state.steps + 1, "seen": self.state.seen, "epoch": piece.epoch}
            self._capsules.save(error, batch=batch, model=self._plain, rng=rng, about=where, trainer=self)
            raise
        tally.add(reading.loss, samples, reading.figures)
        self.state.epoch = piece.epoch

    def _check_finite(self, reading: Reading) -> None:
        if math.isfinite(reading.loss):
            return
        if reading.is_late:
            for parameter in self.model.parameters():
                parameter.grad = None  # a capsule names what was not finite before, not what this loss made of it
        raise NonFiniteLoss(f"the loss of step {self.state.steps + 1} is {reading.loss}")

    def _update(self, totals: Totals, pieces: int) -> None:
        """Correct the gradient, set the learning rate for the samples seen, and step."""
        self._precision.unscale(self.optimizer)
        self._gradient.put_right(self.model.parameters(), samples=totals.samples, pieces=pieces)
        if self.params.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.params.clip_norm)
        self.state.seen += totals.samples
        self._set_lr()
        if self._step_optimizer() and self._ema is not None:
            self._ema.step()
        self.state.steps += 1

    def _set_lr(self) -> None:
        ratio = self._ratio(self.state.seen)
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * ratio

    def _step_optimizer(self) -> bool:
        """Return whether the step was made: mixed precision skips steps with overflowing gradients."""
        return self._precision.step(self.optimizer)

    def _log_step(self, totals: Totals, tally: StepTotals) -> None:
        state, run = self.state, self.run
        state.losses.append(state.seen, totals.loss)
        state.note_figures(tally.figures)
        run.aim(self.params.max_steps or math.ceil(state.steps * self._target / max(1, state.seen)))
        figures = {**tally.figures, **self._watch.after_step(state.seen, self._target)}
        run.step({"loss": totals.loss, "lr": self.optimizer.param_groups[0]["lr"], "seen": state.seen, **figures})
        self._console.after_step()
        self.on_step({"loss": totals.loss, **figures})

    def _is_evaluation_due(self, share: float) -> bool:
        return self._evaluates and self.state.seen - self.state.last_evaluated >= max(1, share * self._gap)

    def _evaluate(self) -> None:
        with self._evaluating():
            if type(self).evaluate is Trainer.evaluate or self._is_sharded:
                values = validate.named(self.evaluate())
            else:
                values = self._board.from_main(validate.named(self.evaluate()) if self.run.is_main else None)
        is_best = self.state.evaluated(values, self.run.global_step)
        metrics = {f"eval/{name}": value for name, value in values.items()}
        self.run.evaluate(metrics)
        self.run.checkpoint(best=is_best, metrics=metrics)
        self._console.evaluated(self.state, values, is_best=is_best)
        self.on_evaluated(values, is_best=is_best)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Use the unwrapped model in evaluation mode, with averaged weights if there are any. A sharded model stays wrapped."""
        trained, plain = self.model, self._plain
        with ExitStack() as stack:
            stack.callback(setattr, self, "model", trained)
            stack.callback(plain.train, plain.training)
            self.model = trained if self._is_sharded else plain
            plain.eval()
            stack.enter_context(torch.no_grad())
            stack.enter_context(self._precision.forward())
            if self._ema is not None:
                stack.enter_context(self._ema.applied())
            yield

    @property
    def _evaluates(self) -> bool:
        return self._evaluation_data is not None or type(self).evaluate is not Trainer.evaluate

    @property
    def _plain(self) -> Any:
        return self.run.parallel.unwrap(self.model)

    @property
    def _is_sharded(self) -> bool:
        """True if a forward pass needs all workers."""
        return self.run.parallel.name not in ("none", "ddp")

    def _average(self) -> Ema | None:
        if not self.params.ema:
            return None
        if self._is_sharded:
            raise UsageError(f"ema does not work with parallel={self.run.parallel.name!r}", hint="set ema to 0")
        return Ema(self._plain, self.params.ema)


def _too_large(reason: str) -> NoReturn:
    """Skip the trial in a sweep, which can try other sizes; otherwise raise Refused."""
    if is_trial():
        skip_trial(reason)
    raise Refused(reason)
