"""Training framework. A script defines what is trained (Params, Model, Trainer); the command line decides how it is run."""

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
