"""Members of the workspace, their roles, and invitations."""

from __future__ import annotations

from shoal.client._http import segment
from shoal.client._noun import WorkspaceNoun
from shoal.core.people import (
    MemberSet,
    MemberView,
    Role,
    WorkspaceInvitationCreated,
    WorkspaceInvitationView,
    WorkspaceInvite,
)

Listed = list[WorkspaceInvitationView]


class Members(WorkspaceNoun):
    def list(self) -> list[MemberView]:
        return self._http.fetch(list[MemberView], self._path("members"))

    def set(self, email: str, role: Role) -> MemberView:
        """Add a person, or change the role of a member."""
        return self._http.call(MemberView, "PUT", self._path("members"), MemberSet(email=email, role=role))

    def remove(self, member: str) -> None:
        """Remove a member, given by e-mail address or user id."""
        self._http.send("DELETE", self._path("members", segment(member)))

    def invite(
        self, email: str = "", role: Role = Role.MEMBER, *, expires_in_s: int | None = None
    ) -> WorkspaceInvitationCreated:
        """Create a link with which one person can join; without an e-mail address, anyone who has the link."""
        life = {} if expires_in_s is None else {"expires_in_s": expires_in_s}
        body = WorkspaceInvite(email=email, role=role, **life)
        return self._http.call(WorkspaceInvitationCreated, "POST", self._path("invitations"), body)

    def invitations(self) -> Listed:
        """List the open invitations, newest first."""
        return self._http.fetch(list[WorkspaceInvitationView], self._path("invitations"))

    def revoke_invitation(self, invitation: str) -> None:
        """Revoke an invitation by its id, or all open ones for an e-mail address."""
        self._http.send("DELETE", self._path("invitations", segment(invitation)))
