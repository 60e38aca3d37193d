"""The training framework: say what is trained (Params, Model, Trainer); how it is run is a matter of the command line."""

from __future__ import annotations

from shoal.core.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Model": ".model",
        "Outcome": ".trainer",
        "Params": ".params",
        "Predictor": ".predictor",
        "Range": ".params",
        "Trainer": ".trainer",
    },
)
