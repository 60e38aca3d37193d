"""Lightning's Trainer: its own limits on batches and epochs, set to a few."""

from __future__ import annotations

from typing import Any

from .trial import STEPS, Trial


def install(module: Any, trial: Trial) -> None:
    original = module.Trainer.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("fast_dev_run"):
            for name in ("max_epochs", "max_steps"):
                if isinstance(kwargs.get(name), int) and kwargs[name] > 0:
                    trial.facts["asked_epochs" if name == "max_epochs" else "asked_steps"] = kwargs[name]
            kwargs |= {"max_epochs": 1, "limit_train_batches": STEPS, "limit_val_batches": 1, "limit_test_batches": 1}
            # Such intervals count batches, of which there are fewer now.
            kwargs |= {"val_check_interval": 1.0, "num_sanity_val_steps": 0, "log_every_n_steps": 1}
        original(self, *args, **kwargs)
        trial.in_pass = True  # what ends it are the limits

    module.Trainer.__init__ = __init__
