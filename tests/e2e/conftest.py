"""A real server and a real browser. Skipped where Chromium (Debian's `chromium`) or Playwright is missing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.testing.live import LiveServer, live_server

SHOTS = Path(__file__).parents[2] / "build/screenshots"


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


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    with live_server(tmp_path / "home") as server:
        yield server


class Watched:
    """A page, and everything that went wrong in it: errors, dialogs a script opened, loads the policy refused."""

    def __init__(self, browser: Any, **options: Any):
        self.context = browser.new_context(viewport={"width": 1280, "height": 860}, accept_downloads=True, **options)
        self.page = self.context.new_page()
        self.problems: list[str] = []
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.problems.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("console", self._heard)

    def _heard(self, message: Any) -> None:
        """Answers that are refusals are logged too, by Chromium and by htmx; they are part of what is tested."""
        is_refusal = message.text.startswith(("Failed to load resource", "Response Status Error Code"))
        if message.type == "error" and not is_refusal:
            self.problems.append(message.text)

    def shoot(self, name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        for theme in ("light", "dark"):
            self.page.evaluate(
                "theme => { document.documentElement.dataset.theme = theme; dispatchEvent(new Event('shoal:theme')); }",
                theme,
            )
            self.page.screenshot(path=SHOTS / f"{name}-{theme}.png")


@pytest.fixture
def watched(chromium: Any) -> Iterator[Watched]:
    watched = Watched(chromium)
    yield watched
    watched.context.close()
