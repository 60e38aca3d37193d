"""LAMB."""

from shoal.train.optim.lamb import Lamb as LambOptimizer  # noqa: F401
