"""The predictor."""

from shoal.compat.topspin.predict import PredictorBase  # noqa: F401
