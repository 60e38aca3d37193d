"""Hook for Lightning's Trainer: set its own limits of batches and epochs to a few."""

from __future__ import annotations

from typing import Any

from .probe import STEPS, Probe


def install(module: Any, probe: Probe) -> None:
    original = module.Trainer.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("fast_dev_run"):
            for name in ("max_epochs", "max_steps"):
                if isinstance(kwargs.get(name), int) and kwargs[name] > 0:
                    probe.facts["asked_epochs" if name == "max_epochs" else "asked_steps"] = kwargs[name]
            kwargs |= {"max_epochs": 1, "limit_train_batches": STEPS, "limit_val_batches": 1, "limit_test_batches": 1}
            # These intervals count batches, and there are fewer of them now.
            kwargs |= {"val_check_interval": 1.0, "num_sanity_val_steps": 0, "log_every_n_steps": 1}
        original(self, *args, **kwargs)
        probe.in_pass = True  # the limits end the training

    module.Trainer.__init__ = __init__
