"""The fixtures that Shoal ships for tests of its server."""

from shoal.testing.fixtures import *  # noqa: F403
