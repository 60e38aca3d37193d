"""NetMind's callback for the Hugging Face Trainer: Shoal's callback with `custom_metrics` and the run of `nmp`."""

from __future__ import annotations

from typing import Any

from shoal.integrations.hf import ShoalCallback


class NetmindTrainerCallback(ShoalCallback):
    """Callback for the Trainer. A subclass may set `kwargs["custom_metrics"]` before it calls super()."""

    def __init__(self) -> None:
        super().__init__()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        from shoal.compat.netmind import nmp

        nmp.join()
        super().on_train_begin(args, state, control, **kwargs)

    def on_step_end(
        self, args: Any, state: Any, control: Any, custom_metrics: dict[str, Any] | None = None, **kwargs: Any
    ) -> Any:
        if custom_metrics:
            self.log_step(state, custom_metrics)
        control = super().on_step_end(args, state, control, **kwargs)
        if state.global_step >= state.max_steps:
            # NetMind's guide promises a checkpoint at the end, whatever the save strategy.
            control.should_save = True
        return control

    def on_evaluate(
        self, args: Any, state: Any, control: Any, custom_metrics: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if custom_metrics:
            self.log_evaluation(custom_metrics)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_save(args, state, control, **kwargs)

    def save_pretrained(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Let the Trainer save after this step."""
        control.should_save = True
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Do nothing: the script calls `nmp.finish_training()`, or the run is finished when the process ends."""

    def _exit_gracefully(self, *_: Any) -> None:
        if self._run is not None:
            self._run.stop("requested by the script")
