"""TopSpin's TrainerBase, with the interfaces of versions 4, 5 and 1.2.1, on Shoal's trainer."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from shoal.compat.topspin import bugs, saved, seeds
from shoal.compat.topspin.figures import Board, Figures
from shoal.compat.topspin.group import ensure_group
from shoal.compat.topspin.hooks import Hooks, warn_of_uncalled
from shoal.compat.topspin.logs import Logger, get_future_time, to_readable_time
from shoal.compat.topspin.loop import EvaluatingLoop, Loop
from shoal.compat.topspin.model import ModelBase, ModelWrapperBase, load_weights
from shoal.compat.topspin.param import ParamBase
from shoal.compat.topspin.setup import agree, load_initial, make_optimizer, set_machine
from shoal.compat.topspin.stopping import LockWatch
from shoal.compat.topspin.workspace import DONE, FAILED, STOPPED, Workspace
from shoal.core.errors import UsageError
from shoal.sdk import library_loops
from shoal.train.bug import is_of_a_peer
from shoal.train.data.files import expand
from shoal.train.state import State
from shoal.train.table import parameter_table
from shoal.train.trainer import Outcome

torch: Any = import_module("torch")

_ENOUGH = 0.99
"""Share of the target from which the end of the data counts as a finished training."""


class TrainerBase(Hooks):
    """Trainer: `TrainerBase(model, PredictorClass, optimizer)` or `TrainerBase(wrapper, data_iterator, optimizer)`."""

    def __init__(self, model: Any, user_predictor_cls: Any = None, optimizer: Any = None):
        param: ParamBase = model._param
        param.use_first_variant()
        self._param = param
        self._device = ensure_group(param.use_gpu)
        self._rank, self._world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self._local_rank = int(os.environ.get("LOCAL_RANK") or 0)
        set_machine(param)
        agree(param)
        seeds.begin(param.real_seed)
        self._work = Workspace(param, rank=self._rank)
        if "SHOAL_REPLAY" not in os.environ:
            self._work.open(to_terminal="DIST_RUN" not in os.environ)
        self._model_wrapper: Any = model if isinstance(model, ModelWrapperBase) else None
        self._data_iter = user_predictor_cls if self._model_wrapper is not None else None
        self._user_predictor_cls = None if self._model_wrapper is not None else user_predictor_cls
        self._user_model = (model if self._model_wrapper is None else model._user_model).to(self._device)
        if self._model_wrapper is None and hasattr(model, "set_device"):
            model.set_device(self._device)
        self._optimizer = make_optimizer(param, self._user_model) if optimizer is None else optimizer
        if param.path_initial_model:
            load_initial(param.path_initial_model, self._user_model, self._optimizer, self._device)
        kind = EvaluatingLoop if param.vali_file or param.test_files else Loop
        self._loop = kind(self, self._user_model, self._optimizer)
        if self._model_wrapper is not None:
            self._model_wrapper._in_use = lambda: self._loop.model
        self._model_size = sum(p.numel() for p in self._user_model.parameters())
        self._may_stop_early = type(self).early_stop is not TrainerBase.early_stop
        self._figures, self._vali_error_history = Figures(), list[float]()
        self._board: Board | None = None
        self._best_name: str | None = self._work.recorded("best_model") if param.restore_from_last_train else None
        self._began, self._seen_before = time.monotonic(), 0
        param.display()
        Logger.info("\n" + parameter_table(self._user_model))
        warn_of_uncalled(self)

    # --- for users ---

    def train_one_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Return {"loss": tensor, "batch_num": int, "figure": {name: number}}; in version 4 the loss, or (loss, batch_num)."""
        raise NotImplementedError(f"{type(self).__name__} needs a train_one_batch(*batch)")

    def get_training_data(self, rank: int, world_size: int) -> Any:
        """Return an iterator of (epoch_id, batch) with this worker's share of the data."""
        raise NotImplementedError(f"{type(self).__name__} needs a get_training_data(rank, world_size)")

    def early_stop(
        self, batch_id: int, epoch_id: int, loss_history: list[float], vali_error_history: list[float]
    ) -> bool:
        """Return True to stop. An override may leave out batch_id, as in version 4."""
        return False

    def train(self) -> Outcome | None:
        """Train until the target or a stop. If the data ends too early, the process exits with code 1."""
        limit = self._param.automl_max_model_size
        if limit is not None and self._model_size > limit:
            Logger.info(f"automl: skip training, as model size {self._model_size} > {limit}")
            self._work.end("skipped", None)
            return None
        try:
            outcome = self._loop.fit()
        except BaseException as error:
            if "SHOAL_REPLAY" not in os.environ:
                self._failed(error)
            raise
        if self._status(outcome) == "failed":
            raise SystemExit(1)
        return outcome

    # Name of version 1.2.1.
    @property
    def _model(self) -> Any:
        """Model in use: in a training step the wrapped one, whose gradients are exchanged; in an evaluation the plain one."""
        return self._loop.model

    # --- called by the loop ---

    def _training_data(self) -> Any:
        if self._data_iter is not None:
            return self._data_iter
        return self.get_training_data(rank=self._rank, world_size=self._world_size)

    def _evaluate_files(self) -> dict[str, float]:
        param = self._param
        judge = self._model_wrapper
        if judge is None:
            if self._user_predictor_cls is None:
                raise UsageError(
                    "vali_file or test_files is set, but there is no predictor", hint="TrainerBase(model, Predictor)"
                )
            judge = self._user_predictor_cls(param)
            judge._model.load_state_dict(self._user_model.state_dict())
        values = {"error": float(judge.evaluate_file(param.vali_file))} if param.vali_file else {}
        tests = expand(param.test_files) if param.test_files else []
        return values | {f"test_file.{file}": float(judge.evaluate_file(str(file))) for file in tests}

    def _wants_stop(self, state: State) -> bool:
        epoch_id = state.seen // int(self._param.train_sample_num)
        histories = (self._loss_history, self._vali_error_history)
        stop: Any = self.early_stop
        if len(inspect.signature(stop).parameters) == 3:
            return bool(stop(epoch_id, *histories))
        return bool(stop(self._batch_id, epoch_id, *histories))

    def _on_start(self) -> None:
        run, param = self._loop.run, self._param
        run.prepare(self._figures)
        if param.restore_from_last_train and not run.resumed:
            self._restore_from_file()
        name = f"vali_file.{param.vali_file}"
        self._vali_error_history = [-value for _, value in self._figures.lines.get(name, [])]
        self._began, self._seen_before = time.monotonic(), self._loop.state.seen
        if self._rank == 0:
            self._board = Board(Path(param.path_work) / "tensorboard")
            self._lock_watch = LockWatch(Path(param.run_lock_file), run.stop)
            self._lock_watch.start()

    def _on_step(self, figures: Mapping[str, float]) -> None:
        own = {name: value for name, value in figures.items() if name != "loss" and "/" not in name}
        self._figures.add(own)
        state = self._loop.state
        if self._rank == 0 and self._board is not None:
            self._report_step(figures, own)
        if state.steps % int(self._param.draw_figure_frequency) == 0:
            self._draw()

    def _report_step(self, figures: Mapping[str, float], own: Mapping[str, float]) -> None:
        state = self._loop.state
        assert self._board is not None  # noqa: S101
        self._board.add({"loss": figures["loss"], **own}, state.seen)
        self._log_step(figures["loss"])
        if len(figures) > len(own) + 1:  # every few seconds
            Logger.info(self._loop.report())

    def _on_evaluated(self, values: Mapping[str, float], *, is_best: bool) -> None:
        """Record an evaluation and save the model if it is the best. Without evaluations `values` is empty; all are saved."""
        param, state = self._param, self._loop.state
        if "error" in values:
            self._figures.add_evaluation(f"vali_file.{param.vali_file}", self._batch_id, -values["error"])
            self._vali_error_history.append(values["error"])
        for name, value in values.items():
            if name != "error":
                self._figures.add_evaluation(name, self._batch_id, -value)
        if self._rank != 0:
            return
        if self._board is not None:
            self._board.add({f"eval '{n}'": v for n, v in values.items()}, state.seen)
        if param.vali_file:
            Logger.info(f"so far the best vali error: {state.best}")
            self._work.keep("dev.eval.pkl", self._vali_error_history)
        if is_best or not param.vali_file:
            self._keep_model(is_best=is_best)
        self._work.record(best=self._opt_evaluate_error, best_model=self._best_name, seen=state.seen, steps=state.steps)

    def _on_end(self, outcome: Outcome) -> None:
        if self._rank == 0 and self._board is not None:
            self._lock_watch.close()
            if outcome.reason == "stopped":
                self._keep_model(is_best=False)
        self._draw()
        if self._board is not None:
            self._board.close()
        status = self._status(outcome)
        words = {"finished": "Training is Done.", "stopped": "Training is stopped; it can be restored."}
        Logger.info(words.get(status, f"Training is Done with an exception: {outcome.reason}"))
        self._work.record(reason=outcome.reason, seen=outcome.seen, steps=outcome.steps)
        self._work.end(status, {"finished": DONE, "stopped": STOPPED}.get(status, FAILED))

    # --- internal ---

    def _status(self, outcome: Outcome) -> str:
        if outcome.reason == "out_of_data":
            return "finished" if outcome.seen >= _ENOUGH * self._loop.target_samples() else "failed"
        return "stopped" if outcome.reason == "stopped" else "finished"

    def _failed(self, error: BaseException) -> None:
        if self._rank == 0 and hasattr(self, "_lock_watch"):
            self._lock_watch.close()
        Logger.error(f"{type(error).__name__}: {error}")
        if hasattr(self._loop, "run"):
            bugs.keep(self._param, self._loop.run.output_dir / "bug", rank=self._rank, seen=self._loop.state.seen)
        self._work.fail(error, is_own=not is_of_a_peer(error))

    def _restore_from_file(self) -> None:
        """Restore a run that has only TopSpin's model files, for example because TopSpin itself trained it."""
        file = saved.newest(self._param.path_model)
        if file is None:
            Logger.warn(f"there is nothing to restore in {self._param.path_work}: training starts from scratch")
            return
        if isinstance(self._user_model, ModelBase):
            info = self._user_model.load_model_from_folder()
        else:
            info = load_weights(self._user_model, file, self._device)
        if info is None:
            return
        if "optimizer_state" in info:
            self._optimizer.load_state_dict(info["optimizer_state"])
        state, figures = self._loop.state, dict(info.get("figure_data") or {})
        state.seen, state.last_evaluated = int(info["model_seen_sample_num"]), int(info.get("last_evaluate_point") or 0)
        state.steps = int(info.get("batch_id", -1)) + 1
        state.best = float(info["opt_evaluate_error"]) if info.get("opt_evaluate_error") else None
        for loss in figures.pop("loss", []):
            state.losses.append(state.seen, float(loss))
        self._figures.load_state_dict({"lines": figures})
        library_loops.count(self._loop.run, state.steps, total=None)
        Logger.warn(f"restored from {file}: the model continues from {state.seen} samples, the data starts over")

    def _log_step(self, loss: float) -> None:
        state, target = self._loop.state, self._loop.target_samples()
        took = time.monotonic() - self._began
        left = took / max(1, state.seen - self._seen_before) * max(0, target - state.seen)
        lrs = [group["lr"] for group in self._optimizer.param_groups]
        Logger.info(f"lr: ratio={lrs[0] / (self._optimizer.param_groups[0]['initial_lr'] or 1.0):.6g}, value={lrs}")
        Logger.info(
            f"Training time: {to_readable_time(took)}, and estimated remaining time: {to_readable_time(left)} "
            f"to finish on {get_future_time(seconds=left, country_city=Logger.country_city)}"
        )
        Logger.info(
            f"{self._get_worker_info()}: *Epoch: {state.seen / self._param.train_sample_num:.2f}, "
            f"batch_id: {self._batch_id:_}, progress: {100 * state.seen / target:.2f} %, "
            f"sample_num: {state.seen:_}, loss: {loss:.4f}"
        )
