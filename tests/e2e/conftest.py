"""Real servers and a real browser. Skipped where Chromium (Debian's `chromium`) or Playwright is missing.

One browser serves all tests, and one filled server all that only look; pictures of pages go to SHOAL_SHOTS.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.client.local import running_server
from shoal.testing import leaks
from shoal.testing.live import LiveServer, live_server

sys.path.insert(0, str(Path(__file__).parents[1] / "unit/server"))  # for web_run: jobs and what agents tell of them
sys.path.insert(0, str(Path(__file__).parent))

import researched
from filled import Filled, fill
from watched import Watched


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("needs chromium")
    with sync_api.sync_playwright() as playwright:
        # As root, as in most containers, Chromium starts only without its own sandbox.
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """One for a file of tests: empty when they start."""
    with live_server(tmp_path_factory.mktemp("server") / "home") as server:
        yield server


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    """One with a bit of everything in it, good and hostile. Tests that use it only look."""
    home = tmp_path_factory.mktemp("filled") / "home"
    home.mkdir()
    made = fill(home)
    with live_server(home, warm=False) as server, server.client() as client:
        leaks.keep(running_server(server.layout).pid)
        made.base = client.url
        yield made


@pytest.fixture(scope="module")
def research(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    """Two hundred runs of a search with seeds."""
    home = tmp_path_factory.mktemp("research") / "home"
    home.mkdir()
    made = researched.fill(home)
    with live_server(home, warm=False) as server, server.client() as client:
        made.base = client.url
        yield made


@pytest.fixture(scope="session")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder for screenshots of pages."""
    told = os.environ.get("SHOAL_SHOTS")
    folder = Path(told) if told else tmp_path_factory.mktemp("artifacts")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def watched(chromium: Any, shots: Path) -> Iterator[Watched]:
    watched = Watched(chromium, shots)
    yield watched
    watched.context.close()


@pytest.fixture(scope="module")
def looking(chromium: Any, shots: Path, filled: Filled) -> Iterator[Watched]:
    """A page of the filled server's owner, for all tests of a file."""
    watched = Watched(chromium, shots).enter(filled, filled.session)
    yield watched
    watched.context.close()


@pytest.fixture(scope="module")
def beside_mallory(chromium: Any, shots: Path, filled: Filled) -> Iterator[Watched]:
    """Like `looking`, with a server whose texts are all hostile."""
    watched = Watched(chromium, shots).enter(filled, filled.mallory)
    yield watched
    watched.context.close()
