"""A browser page under watch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from filled import Filled

_UNANSWERED = (
    "Failed to load resource",
    "Response Status Error Code",
    "htmx:sendError",
    "htmx:sendAbort",
    "htmx:afterRequest",
)
WIDE, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}


class Watched:
    """A page, and everything that went wrong in it: errors, dialogs a script opened, loads the policy refused, planted calls."""

    def __init__(self, browser: Any, shots: Path, **options: Any):
        given = {"viewport": WIDE, "accept_downloads": True} | options
        self.context, self.shots = browser.new_context(**given), shots
        self.problems: list[str] = []
        # What the hostile texts of `filled` call, should one of them run.
        self.context.expose_binding("ran", lambda _, *told: self.problems.append(f"ran: {told}"))
        self.context.on("page", self._watch)
        self.page = self.context.new_page()

    def _watch(self, page: Any) -> None:
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("dialog", lambda dialog: (self.problems.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("console", self._heard)

    def _heard(self, message: Any) -> None:
        """Answers that are refusals, or never came, are logged too, by Chromium and by htmx; they are part of what is tested."""
        if message.type == "error" and not message.text.startswith(_UNANSWERED):
            self.problems.append(message.text)

    def enter(self, filled: Filled, session: str) -> Watched:
        """Signed in to the filled server."""
        port = filled.base.rpartition(":")[2]
        self.context.add_cookies([{"name": f"shoal_session_{port}", "value": session, "url": filled.base}])
        return self

    def theme(self, name: str) -> None:
        self.page.evaluate(
            "theme => { document.documentElement.dataset.theme = theme; dispatchEvent(new Event('shoal:theme')); }",
            name,
        )

    def shoot(self, name: str, *, whole: bool = False) -> None:
        """Show the page in both themes, and keep a picture of each where SHOAL_SHOTS asks for them."""
        for theme in ("light", "dark"):
            self.theme(theme)
            if "SHOAL_SHOTS" not in os.environ:
                continue
            self.page.screenshot(path=self.shots / f"{name}-{theme}.png", full_page=whole, animations="disabled")
