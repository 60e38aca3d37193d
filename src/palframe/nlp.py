"""Helpers."""

from shoal.compat.topspin.helper import *  # noqa: F403
