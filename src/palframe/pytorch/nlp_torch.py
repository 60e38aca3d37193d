"""Pieces of models."""

from shoal.compat.topspin.nn_helper import *  # noqa: F403
