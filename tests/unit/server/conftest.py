"""The fixtures that Shoal ships for tests of its server, and a browser."""

import pytest
from web_browser import Browser

from shoal.testing.fixtures import *  # noqa: F403


@pytest.fixture
def browser(app, ctx, anna):
    """Anna's, signed in."""
    return Browser(app).enter(ctx, anna)
