"""Starting trainings."""

from shoal.compat.topspin.starter import *  # noqa: F403
