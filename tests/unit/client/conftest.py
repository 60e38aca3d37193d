"""Fixtures of the client's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from stubserver import Stub, running_stub


@pytest.fixture
def stub() -> Iterator[Stub]:
    with running_stub() as made:
        yield made
