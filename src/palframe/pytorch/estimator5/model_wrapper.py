"""Model wrappers."""

from shoal.compat.topspin.model import ModelWrapperBase  # noqa: F401
