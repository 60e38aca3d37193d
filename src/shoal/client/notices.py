"""Notification rules of the workspace, and a person's notices."""

from __future__ import annotations

from shoal.client._http import segment
from shoal.client._noun import WorkspaceNoun
from shoal.core.notices import Inbox, RuleMade, RuleSave, RuleView


class Notices(WorkspaceNoun):
    def add(self, rule: RuleSave) -> RuleMade:
        """Add a rule; the answer has the secret that signs its webhooks."""
        return self._http.call(RuleMade, "POST", self._path("notification-rules"), rule)

    def list(self) -> list[RuleView]:
        return self._http.fetch(list[RuleView], self._path("notification-rules"))

    def remove(self, rule: str) -> None:
        self._http.send("DELETE", self._path("notification-rules", segment(rule)))

    def test(self, rule: str) -> None:
        """Send a test through all channels of a rule."""
        self._http.send("POST", self._path("notification-rules", segment(rule), "test"))

    def inbox(self) -> Inbox:
        """Return your newest notices, of all workspaces."""
        return self._http.fetch(Inbox, "/notices")

    def mark_read(self) -> None:
        self._http.send("POST", "/notices/read")
