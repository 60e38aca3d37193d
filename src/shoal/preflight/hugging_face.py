"""Hook for the Hugging Face Trainer: a callback makes it evaluate, save and stop after a few steps."""

from __future__ import annotations

from typing import Any

from .probe import STEPS, Probe


def install(module: Any, probe: Probe) -> None:
    callback = _callback(module.TrainerCallback, probe)
    original = module.Trainer.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        given: Any = kwargs.get("args") or (args[1] if len(args) > 1 else None)
        if getattr(given, "push_to_hub", False):
            given.push_to_hub = False
        original(self, *args, **kwargs)
        self.add_callback(callback())

    module.Trainer.__init__ = __init__
    module.Trainer.push_to_hub = lambda *_, **__: None


def _callback(base: Any, probe: Probe) -> Any:
    class Preflight(base):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            probe.facts["total_steps"] = int(state.max_steps)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            probe.in_pass = True  # the Trainer stops by itself, at the end of a step
            if state.global_step >= min(STEPS, state.max_steps):
                strategy = getattr(args, "eval_strategy", None) or getattr(args, "evaluation_strategy", "no")
                control.should_evaluate = _is_on(strategy)
                control.should_save = _is_on(args.save_strategy)
                control.should_training_stop = True
            return control

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            probe.in_pass = False

    return Preflight


def _is_on(strategy: Any) -> bool:
    return str(getattr(strategy, "value", strategy)) != "no"
