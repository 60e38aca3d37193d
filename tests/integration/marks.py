"""Marks of tests with real processes."""

import os
from collections.abc import Callable

import pytest


def takes_minutes(test: Callable[..., object]) -> Callable[..., object]:
    """CI has half an hour for all: it leaves these to ./scripts/soak."""
    skipped = pytest.mark.skipif("SHOAL_SOAK" not in os.environ, reason="takes minutes: ./scripts/soak")
    return pytest.mark.soak(skipped(test))
