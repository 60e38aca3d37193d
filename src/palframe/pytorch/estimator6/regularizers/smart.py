"""As scripts import it."""

from shoal.compat.topspin.regularizers import smart_loss  # noqa: F401
