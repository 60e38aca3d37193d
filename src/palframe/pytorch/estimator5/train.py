"""The trainer."""

from shoal.compat.topspin.train import TrainerBase  # noqa: F401
