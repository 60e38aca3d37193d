"""LocalStore keeps the contract of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.store.local import LocalStore
from shoal.testing.store import StoreContract


class TestLocalStore(StoreContract):
    @pytest.fixture
    def opened(self, tmp_path: Path) -> Iterator[Callable[[], LocalStore]]:
        handles: list[LocalStore] = []

        def open_it() -> LocalStore:
            handles.append(LocalStore(tmp_path / "store"))
            return handles[-1]

        yield open_it
        for handle in handles:
            handle.close()
