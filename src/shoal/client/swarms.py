"""Swarms: one model, trained by peers that join and leave at any time."""

from __future__ import annotations

from shoal.client._http import parse, segment
from shoal.client._noun import WorkspaceNoun
from shoal.core.checkpoints import CheckpointView
from shoal.core.swarm import SwarmSpec
from shoal.core.swarm_views import (
    InvitationCreate,
    InvitationCreated,
    InvitationView,
    Kick,
    PeerView,
    RoundView,
    SwarmCreated,
    SwarmSummary,
    SwarmView,
)

Checkpoints = list[CheckpointView]
Invitations = list[InvitationView]
Peers = list[PeerView]
Rounds = list[RoundView]


class Swarms(WorkspaceNoun):
    """Swarms of a workspace. Each is given by its name or id."""

    def create(self, spec: SwarmSpec) -> SwarmCreated:
        return self._http.call(SwarmCreated, "POST", self._path("swarms"), spec)

    def list(self, *, limit: int | None = None) -> list[SwarmSummary]:
        """List swarms, newest first."""
        return self._http.fetch(list[SwarmSummary], self._path("swarms"), limit=limit)

    def get(self, swarm: str) -> SwarmView:
        return self._http.fetch(SwarmView, self._swarm(swarm))

    def peers(self, swarm: str) -> Peers:
        return self._http.fetch(Peers, self._swarm(swarm, "peers"))

    def rounds(self, swarm: str, *, after: int | None = None, limit: int | None = None) -> Rounds:
        """Return one page of rounds. Pass the number of its last round as `after` to get the next page."""
        return self._http.fetch(Rounds, self._swarm(swarm, "rounds"), after=after, limit=limit)

    def checkpoints(self, swarm: str) -> Checkpoints:
        """List the checkpoints, oldest first."""
        return self._http.fetch(Checkpoints, self._swarm(swarm, "checkpoints"))

    def stop(self, swarm: str) -> SwarmView:
        """Stop a swarm. Nothing changes if it is already stopped."""
        return self._http.call(SwarmView, "POST", self._swarm(swarm, "stop"), repeatable=True)

    def resume(self, swarm: str, *, force: bool = False) -> SwarmView:
        """Resume a stopped swarm. `force`: even while peers are active; they return to the newest checkpoint."""
        params = {"force": str(force).lower()}
        return parse(SwarmView, self._http.send("POST", self._swarm(swarm, "resume"), params=params))

    def delete(self, swarm: str) -> None:
        """Delete a stopped swarm."""
        self._http.send("DELETE", self._swarm(swarm))

    def kick(self, swarm: str, peer: str, request: Kick) -> PeerView:
        path = self._swarm(swarm, "peers", segment(peer), "kick")
        return self._http.call(PeerView, "POST", path, request, repeatable=True)

    def invite(self, swarm: str, request: InvitationCreate) -> InvitationCreated:
        return self._http.call(InvitationCreated, "POST", self._swarm(swarm, "invitations"), request)

    def invitations(self, swarm: str) -> Invitations:
        return self._http.fetch(Invitations, self._swarm(swarm, "invitations"))

    def revoke(self, swarm: str, invitation: str) -> None:
        self._http.send("DELETE", self._swarm(swarm, "invitations", segment(invitation)))

    def _swarm(self, swarm: str, *parts: str) -> str:
        return self._path("swarms", segment(swarm), *parts)
