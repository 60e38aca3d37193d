"""Skips for tests that need a library of an optional extra, decided without importing it.

Some of these libraries take seconds to import, and every worker of a run collects every file. A file that needs one says so
with `pytestmark = needs("hivemind")` and imports it in a fixture or in the tests.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(*modules: str) -> pytest.MarkDecorator:
    """Return a marker that skips tests where one of the top-level modules is not installed."""
    missing = [module for module in modules if find_spec(module) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")
