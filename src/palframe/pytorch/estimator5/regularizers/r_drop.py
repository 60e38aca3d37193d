"""As scripts import it."""

from shoal.compat.topspin.regularizers import r_drop_regularize  # noqa: F401
