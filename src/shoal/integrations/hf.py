"""Callback for the Hugging Face Trainer: metrics, progress, checkpoints, resume and graceful stop.

Works with transformers 4.44 and later. The Trainer keeps the model, the loop and the checkpoint format; models are not
wrapped.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.core.errors import MissingExtra, UsageError
from shoal.integrations._hf_checkpoints import last_checkpoint, mark, mirror
from shoal.integrations._hf_resume import install
from shoal.sdk import library_loops, start
from shoal.sdk.device import demand_promised

if TYPE_CHECKING:
    from shoal.sdk.run import Run

try:
    # Untyped: type checking must not depend on whether it is installed, nor on its version.
    _TrainerCallback: Any = import_module("transformers").TrainerCallback
except ImportError as error:
    raise MissingExtra("shoal.integrations.hf needs transformers.", hint="pip install 'shoal-train[hf]'") from error

__all__ = ["ShoalCallback", "last_checkpoint"]

logger = logging.getLogger(__name__)

_EVALUATIONS = ("eval_", "test_")
_NOT_METRICS = frozenset({"epoch", "step", "total_flos"})


class ShoalCallback(_TrainerCallback):  # type: ignore[misc]
    """Callback that records a Hugging Face training; pass the class or an instance to `Trainer(callbacks=[…])`.

    It uses the run of `shoal.init(...)` if there is one, else it starts one. Only rank 0 writes metrics.

    Args:
        resume: Whether `trainer.train()` resumes from the platform's checkpoint after a restart by itself.

    Example::

        trainer = Trainer(model, args, train_dataset=data, callbacks=[ShoalCallback])
        trainer.train()
    """

    def __init__(self, resume: bool = True) -> None:
        super().__init__()
        self.resumes_by_itself = resume
        self._run: Run | None = None
        self._before = 0
        """Global steps of earlier `trainer.train()` calls in this process: one run counts the steps of all of them."""
        self._warned_output_dir = False
        install()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        demand_promised()
        _check_world(args)
        run = self._run = self._the_run(args, state)
        self._before = run.global_step if state.global_step == 0 and not run.resumed else 0
        self._update_position(args, state)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        run = self._run
        if run is None:
            return control
        self._update_position(args, state)
        if run.should_stop and not 0 < state.max_steps <= state.global_step:
            control.should_save = True
            control.should_training_stop = True
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if self._run is None or not logs:
            return
        values = {k: v for k, v in logs.items() if k not in _NOT_METRICS and _loggable(v)}
        evaluated = {k: values.pop(k) for k in list(values) if k.startswith(_EVALUATIONS)}
        text = {k: values.pop(k) for k in list(values) if isinstance(values[k], str)}
        if values:
            self.log_step(state, {f"train/{k}": v for k, v in values.items()})
        if evaluated or text:
            named = {k.replace("_", "/", 1): v for k, v in evaluated.items()}
            self.log_evaluation(named | {f"train/{k}": v for k, v in text.items()})

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Mark the `checkpoint-<step>` that the Trainer has written, and copy it to the output directory of the job."""
        _wait_for_all_ranks()
        output = os.environ.get("OUTPUT_DIR") if os.environ.get("SHOAL_SPOOL") else None
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if not state.is_world_process_zero or not checkpoint.is_dir():
            return
        mark(checkpoint)
        if output and not Path(args.output_dir).resolve().is_relative_to(Path(output).resolve()):
            self._warn_output_dir(args.output_dir)
            mirror(Path(args.output_dir), Path(output))

    def log_step(self, state: Any, metrics: dict[str, Any]) -> None:
        """Record training metrics at the Trainer's own step."""
        if self._run is not None:
            library_loops.log_at(self._run, self._before + state.global_step, metrics)

    def log_evaluation(self, metrics: dict[str, Any]) -> None:
        if self._run is not None:
            self._run.evaluate(metrics)

    def _the_run(self, args: Any, state: Any) -> Run:
        if (run := start.current()) is not None:
            return run
        return start.init(
            args.run_name if getattr(args, "run_name", None) not in (None, args.output_dir) else None,
            parallel="none",
            resume="never",
            max_steps=state.max_steps if state.max_steps > 0 else None,
            checkpoint_every_s=None,
            config=_plain(args.to_sanitized_dict()),
        )

    def _update_position(self, args: Any, state: Any) -> None:
        assert self._run is not None  # noqa: S101
        library_loops.count(
            self._run,
            self._before + state.global_step,
            total=self._before + state.max_steps if state.max_steps > 0 else None,
            epoch=state.epoch,
            epochs=state.num_train_epochs or None,
        )

    def _warn_output_dir(self, output_dir: str) -> None:
        if not self._warned_output_dir:
            self._warned_output_dir = True
            logger.warning(
                "checkpoints are written to %s, so finished ones are linked into OUTPUT_DIR for the platform to keep; "
                "use output_dir=os.environ['OUTPUT_DIR'] (or --output_dir /output-checkpoint) to avoid that",
                output_dir,
            )


def _check_world(args: Any) -> None:
    """Raise UsageError if the Trainer does not count all the workers of the job as one training."""
    workers = os.environ.get("WORLD_SIZE", "1") if "LOCAL_WORLD_SIZE" in os.environ else "1"
    if workers != "1" and str(args.world_size) != workers:
        raise UsageError(
            f"This job has {workers} workers, but the Trainer is set up for {args.world_size}: "
            "each worker would train its own model.",
            hint="On CPUs use TrainingArguments(use_cpu=True), or set ACCELERATE_USE_CPU=true.",
        )


def _loggable(value: Any) -> bool:
    return isinstance(value, str) or (not isinstance(value, bool) and hasattr(value, "__float__"))


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments to show: without empty ones, and without those that may hold a credential."""
    empty = (None, "", "None", "[]", "{}", False)
    return {k: v for k, v in config.items() if v not in empty and "token" not in k and k != "local_rank"}


def _wait_for_all_ranks() -> None:
    """Wait for all ranks: each writes the state of its random generator into the checkpoint. on_save runs on all of them."""
    dist: Any = import_module("torch.distributed")
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        dist.barrier()
