"""Real agents and real workers, against a small server that speaks only to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.testing.agent_gang import Gang


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def gang(tmp_path: Path, cache: Path) -> Iterator[Callable[..., Gang]]:
    """`gang(["train.py"], {"train.py": "…"}, num_nodes=2, accels=2)` starts the agents."""
    made: list[Gang] = []

    def make(
        entry: list[str], files: dict[str, Any], *, env: dict[str, str] | None = None, start: bool = True, **reply: Any
    ) -> Gang:
        one = Gang(tmp_path / f"g{len(made)}", cache, entry, files, env or {}, **reply)
        made.append(one)
        return one.start() if start else one

    yield make
    for one in made:
        one.close()


@pytest.fixture(params=["bubblewrap", "rewrite"])
def sandbox(request: pytest.FixtureRequest, cache: Path) -> dict[str, str]:
    """Runs a test in both modes; the first only where it works."""
    from shoal.agent.sandbox.mounts import Mode, choose

    if request.param == "bubblewrap" and choose(cache, "auto") is Mode.REWRITE:
        pytest.skip("bubblewrap does not work here")
    return {"SHOAL_SANDBOX": request.param}
