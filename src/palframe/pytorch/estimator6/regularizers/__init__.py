"""VAT, R-Drop, SMART."""

from shoal.compat.topspin.regularizers import *  # noqa: F403
