"""Methods of TopSpin's TrainerBase that projects override although their names begin with an underscore.

Shoal's loop calls them too. Those it never calls are named in a warning when a project overrides them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shoal.compat.topspin import saved
from shoal.compat.topspin.figures import Board, Figures, Line, draw_all
from shoal.compat.topspin.logs import Logger
from shoal.compat.topspin.loop import Loop
from shoal.compat.topspin.param import ParamBase
from shoal.compat.topspin.workspace import Workspace

_NOT_CALLED = (
    "_evaluate",
    "_try_to_save_best_model",
    "_when_evaluate",
    "_train_one_batch_check",
    "_extract_real_batch_num",
    "_get_batches_data",
    "_sync_value",
    "_check_sync_stop_condition",
    "_memory_information",
    "_init_distributed_training",
    "_try_get_net_name",
    "_update_lr_liner_decay",
    "_update_lr_SGD",
)


class Hooks:
    """Default implementations of the methods that TrainerBase calls and subclasses may override."""

    _param: ParamBase
    _loop: Loop
    _work: Workspace
    _figures: Figures
    _board: Board | None
    _optimizer: Any
    _user_model: Any
    _best_name: str | None
    _rank: int
    _world_size: int

    def _draw_figure(self) -> None:
        """Save and draw the figures. Called every `draw_figure_frequency` batches and at the end, on every worker."""
        if self._rank != 0:
            return
        self._work.keep("figure.data", self._figure_data)
        draw_all(self._param.path_work, self._figure_data, self._param.draw_figure_smooth_width)

    def _save_model(self, tag: str = "") -> None:
        """Write a model file. Called on the first worker if a model is the best so far or due, or the training is stopped."""
        state = self._loop.state
        info = {
            "batch_id": self._batch_id,
            "model_seen_sample_num": state.seen,
            "opt_evaluate_error": self._opt_evaluate_error or 0,
            "last_evaluate_point": state.last_evaluated,
            "figure_data": self._figure_data,
            "optimizer_state": self._optimizer.state_dict(),
            "model": self._user_model.state_dict(),
        }
        keep = int(self._param.model_saved_num)
        saved.save(self._param.path_model, info, keep=keep, keep_also=self._best_name, tag=tag)

    def _update_lr(self) -> None:
        """Set the learning rate of the next step, on every worker."""
        self._update_lr_ratio(self._loop.lr_ratio)

    def _update_lr_ratio(self, ratio: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = ratio * group.setdefault("initial_lr", group["lr"])

    def _step_optimizer(self) -> bool:
        """Make the step; return False if mixed precision skipped it."""
        return self._loop.make_step()

    def _get_worker_info(self) -> str:
        return f"rank[{self._rank}/{self._world_size}]"

    # --- attributes that such methods read ---

    @property
    def _figure_data(self) -> dict[str, Line]:
        return self._figures.with_losses(self._loss_history)

    @property
    def _writer(self) -> Any:
        """TensorBoard's SummaryWriter; None if it is not installed, and on all workers except the first."""
        return None if self._board is None else self._board.writer

    @property
    def _target_seen_sample_num(self) -> int:
        return self._loop.target_samples()

    @property
    def _last_evaluate_point(self) -> int:
        return self._loop.state.last_evaluated

    @property
    def _model_seen_sample_num(self) -> int:
        return self._loop.state.seen

    @property
    def _batch_id(self) -> int:
        return max(0, self._loop.state.steps - 1)

    @property
    def _opt_evaluate_error(self) -> float | None:
        return self._loop.state.best if self._param.vali_file else None

    @property
    def _loss_history(self) -> list[float]:
        return [loss for _, loss in self._loop.state.losses]

    # --- internal ---

    def _draw(self) -> None:
        """Draw the figures; a failure is logged and does not end the training."""
        try:
            self._draw_figure()
        except Exception as error:
            Logger.warn(f"the figures could not be drawn: {error}")

    def _keep_model(self, *, is_best: bool) -> None:
        self._save_model()
        newest = saved.newest(self._param.path_model)
        if is_best and self._param.vali_file and newest is not None:
            self._best_name = Path(newest).name


def warn_of_uncalled(trainer: Hooks) -> None:
    """Log a warning for every method that the project overrides without effect."""
    for name in _NOT_CALLED:
        if hasattr(type(trainer), name):
            Logger.warn(
                f"{type(trainer).__name__}.{name} is never called by Shoal's loop, which calls train_one_batch, "
                "get_training_data, early_stop, _draw_figure, _save_model, _update_lr, _update_lr_ratio and _step_optimizer."
            )
