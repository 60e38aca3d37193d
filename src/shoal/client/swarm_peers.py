"""Connection of a machine to the server of a swarm: with an invitation until it has joined, then with its own token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.client._chunks import ServerChunks
from shoal.client._http import Http, segment
from shoal.client._trees import MANIFEST_TIMEOUT_S
from shoal.client.store import Store
from shoal.core.artifacts import Manifest
from shoal.core.errors import Corrupt
from shoal.core.swarm_views import (
    INVITATION_HEADER,
    Offer,
    PeerBeat,
    PeerInstructions,
    PeerJoin,
    PeerJoined,
    PeerKnock,
    PeerKnocked,
    PeerState,
)

if TYPE_CHECKING:
    from shoal.client._fetch import Fetched

BEAT_TIMEOUT_S = 10.0


class InvitationClient:
    """Calls that an invitation permits. Close it, or use it as a context manager."""

    def __init__(self, url: str, token: str):
        self._http = Http(url, more={INVITATION_HEADER: token})

    @property
    def url(self) -> str:
        return self._http.url

    def offer(self) -> Offer:
        """Return information about the swarm."""
        return self._http.fetch(Offer, "/swarm/offer")

    def knock(self, port: int) -> PeerKnocked:
        """Test whether the server can connect to a port of this machine."""
        return self._http.call(PeerKnocked, "POST", "/swarm/knock", PeerKnock(port=port), repeatable=True)

    def join(self, request: PeerJoin) -> PeerJoined:
        """Join the swarm."""
        return self._http.call(PeerJoined, "POST", "/swarm/join", request)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> InvitationClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PeerLink:
    """Calls of a peer that has joined."""

    def __init__(self, url: str, token: str):
        self._http = Http(url, token)

    def beat(self, state: PeerState) -> PeerInstructions:
        """Send a heartbeat and return the server's instructions."""
        beat = PeerBeat(state="training" if state is PeerState.TRAINING else "joining")
        return self._http.call(PeerInstructions, "POST", "/swarm/beat", beat, repeatable=True, timeout_s=BEAT_TIMEOUT_S)

    def leave(self) -> None:
        self._http.send("POST", "/swarm/leave", repeatable=True, timeout_s=BEAT_TIMEOUT_S)

    def fetch(self, manifest_id: str, dest: Path, progress: Callable[[int], None] | None = None) -> Fetched:
        """Download the files of a manifest, given by its hash. Equal files are not downloaded again; others are replaced."""
        from shoal.client._fetch import fetch_tree

        source = ServerChunks(self._http, "/swarm/fetch", _PeerStore(self._http, ""))
        return fetch_tree(self._manifest(manifest_id), source, dest, force=True, progress=progress)

    @property
    def state_url(self) -> str:
        return f"{self._http.url}/api/v1/swarm/snapshot"

    def close(self) -> None:
        self._http.close()

    def _manifest(self, wanted: str) -> Manifest:
        from shoal.store.manifest import load_manifest, manifest_id

        path = f"/swarm/manifests/{segment(wanted)}"
        found = load_manifest(self._http.send("GET", path, timeout_s=MANIFEST_TIMEOUT_S).content)
        if manifest_id(found) != wanted:
            raise Corrupt("The server sent code or data that the swarm does not use.", hint="shoal swarm doctor LINK")
        return found


class _PeerStore(Store):
    def fetch(self, name: str) -> bytes:
        return self._http.send("GET", f"/swarm/chunks/{segment(name)}").content
