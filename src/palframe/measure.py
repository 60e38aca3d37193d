"""Measures."""

from shoal.compat.topspin.measure import Measure  # noqa: F401
