"""Shoal's trainer behind TopSpin's: it trains and calls the methods of a TrainerBase."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol

from shoal.compat.topspin.batches import as_call, as_result
from shoal.compat.topspin.param import ParamBase
from shoal.sdk.saving.rng import keep_cpu
from shoal.train.params import Params
from shoal.train.state import State
from shoal.train.trainer import Outcome, Trainer


class Owner(Protocol):
    """Interface of TrainerBase that the loop uses."""

    _param: ParamBase
    _device: Any

    _may_stop_early: bool

    def train_one_batch(self, *args: Any, **kwargs: Any) -> Any: ...
    def _training_data(self) -> Any: ...
    def _evaluate_files(self) -> dict[str, float]: ...
    def _wants_stop(self, state: State) -> bool: ...
    def _on_start(self) -> None: ...
    def _on_step(self, figures: Mapping[str, float]) -> None: ...
    def _on_evaluated(self, values: Mapping[str, float], *, is_best: bool) -> None: ...
    def _on_end(self, outcome: Outcome) -> None: ...
    def _update_lr(self) -> None: ...
    def _step_optimizer(self) -> bool | None: ...


class Loop(Trainer):
    """Trainer without evaluations. It saves a model whenever an evaluation would be due."""

    def __init__(self, owner: Owner, model: Any, optimizer: Any):
        self._owner = owner
        super().__init__(native_params(owner._param), model, optimizer)

    def run_options(self) -> dict[str, Any]:
        param = self._owner._param
        goes_on = param.restore_from_last_train or "SHOAL_SPOOL" in os.environ
        return {
            **super().run_options(),
            "name": param.run_tag,
            "dir": param.path_work,
            "resume": "auto" if goes_on else "never",
            "device": str(self._owner._device),
            "config": {name: _plain(value) for name, value in vars(param).items()},
            "extra": {
                "ddp": {
                    "find_unused_parameters": bool(param.find_unused_parameters),
                    "bucket_cap_mb": param.bucket_cap_mb,
                }
            },
        }

    def train_batch(self, batch: Any) -> Any:
        call = as_call(batch)
        return as_result(self._owner.train_one_batch(*call.args, **call.kwargs), call)

    def report(self) -> str:
        """Return speed, share of time spent on data and network, memory, and time left as text."""
        return self._watch.report()

    def training_data(self) -> Any:
        return self._owner._training_data()

    @property
    def lr_ratio(self) -> float:
        """Current learning rate as a share of the initial one."""
        return self._ratio(self.state.seen)

    def make_step(self) -> bool:
        """Step the optimizer as Shoal does; return whether the step was made."""
        return super()._step_optimizer()

    def _set_lr(self) -> None:
        self._owner._update_lr()

    def _step_optimizer(self) -> bool:
        # TopSpin's own method returns None.
        return self._owner._step_optimizer() is not False

    def early_stop(self, state: State) -> bool:
        return self._may_differ and self._owner._wants_stop(state)

    @property
    def _may_differ(self) -> bool:
        return self._owner._may_stop_early

    def on_start(self) -> None:
        self._owner._on_start()

    def on_step(self, figures: Mapping[str, float]) -> None:
        self._owner._on_step(figures)
        if not self._evaluates and self.state.seen - self.state.last_evaluated >= (self.params.eval_every_samples or 1):
            self.run.checkpoint()
            self._keep_model()

    def on_evaluated(self, values: Mapping[str, float], *, is_best: bool) -> None:
        self._owner._on_evaluated(values, is_best=is_best)

    def on_end(self, outcome: Outcome) -> None:
        gap = self.state.seen - self.state.last_evaluated
        if not self._evaluates and outcome.reason != "stopped" and gap >= 0.1 * (self.params.eval_every_samples or 1):
            self._keep_model()
        self._owner._on_end(outcome)

    def _keep_model(self) -> None:
        self.state.last_evaluated = self.state.seen
        self._owner._on_evaluated({}, is_best=True)


class EvaluatingLoop(Loop):
    """Trainer that evaluates a validation file or test files."""

    def evaluate(self) -> dict[str, float]:
        # A predictor is created each time, with random initial weights: restore the training's random state afterwards.
        put_back = keep_cpu()
        try:
            return self._owner._evaluate_files()
        finally:
            put_back()


def native_params(param: ParamBase) -> Params:
    """Return Shoal's parameters for TopSpin's."""
    param.check_param_validity()
    return Params(
        seed=param.real_seed,
        lr=float(param.lr),
        weight_decay=float(param.weight_decay),
        clip_norm=float(param.param_norm),
        amp="fp16" if param.use_amp and param.use_gpu and not param.true_gradient else "none",
        accumulate=int(param.iter_num_update_optimizer),
        batch_size=int(param.batch_size_one_gpu or 1),
        epochs=param.epoch_num,
        max_steps=param.max_train_step,
        train_samples=int(param.train_sample_num),
        eval_every_samples=int(param.eval_gap_sample_num),
        warmup=float(param.warmup_ratio),
        decay="linear" if param.lr_decay_strategy == "linear" else "stepwise",
        ending_lr_ratio=float(param.ending_lr_ratio),
        stepwise_ratio=float(param.stepwise_lr_decay_ratio),
        stepwise_epochs=int(param.stepwise_lr_decay_epochs),
        keep_models=max(1, int(param.model_saved_num)),
        true_gradient=bool(param.true_gradient),
        detect_anomaly=bool(param.detect_anomaly),
        num_workers=int(param.num_workers_loading_data),
    )


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | type(None)) else str(value)
