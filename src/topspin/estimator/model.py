"""Models."""

from shoal.compat.topspin.model import ModelBase  # noqa: F401
