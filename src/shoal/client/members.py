"""Who is in the workspace, and as what."""

from __future__ import annotations

from shoal.client._http import segment
from shoal.client._noun import WorkspaceNoun
from shoal.core.people import MemberSet, MemberView, Role


class Members(WorkspaceNoun):
    def list(self) -> list[MemberView]:
        return self._http.fetch(list[MemberView], self._path("members"))

    def set(self, email: str, role: Role) -> MemberView:
        """Add a person, or change their role."""
        return self._http.call(MemberView, "PUT", self._path("members"), MemberSet(email=email, role=role))

    def remove(self, member: str) -> None:
        """By e-mail address or user id."""
        self._http.send("DELETE", self._path("members", segment(member)))
