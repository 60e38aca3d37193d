"""Code shared by datasets and checkpoints: manifests, and the download of their trees."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.client._chunks import NearbyChunks, ServerChunks, nearby_store
from shoal.client._http import Http
from shoal.client._noun import WorkspaceNoun
from shoal.client.store import Store
from shoal.core.artifacts import FileEntry, Manifest

if TYPE_CHECKING:
    from shoal.client._fetch import Fetched, Source
    from shoal.store.pack import Progress

MANIFEST_TIMEOUT_S = 300.0


class Trees(WorkspaceNoun):
    """Download of trees by their manifests."""

    def __init__(self, http: Http, workspace: str):
        super().__init__(http, workspace)
        self._store = Store(http, workspace)

    def manifest(self, path: str) -> Manifest:
        from shoal.store.manifest import load_manifest

        return load_manifest(self._http.send("GET", path, timeout_s=MANIFEST_TIMEOUT_S).content)

    def source(self, *, nearby: bool = True) -> Source:
        """Return a source of chunks. `nearby` allows reading the store directly if it is on this machine."""
        server = ServerChunks(self._http, self._path("store", "fetch"), self._store)
        local = nearby_store(self._http.url) if nearby else None
        return NearbyChunks(local, server) if local else server

    def open(self, file: FileEntry) -> io.BufferedReader:
        """Open one file of a manifest as a seekable stream."""
        from shoal.client._reading import open_stored

        return open_stored(file, self.source())

    def fetch(
        self, manifest: Manifest, dest: Path, *, force: bool, progress: Progress | None, nearby: bool = True
    ) -> Fetched:
        from shoal.client._fetch import fetch_tree

        return fetch_tree(manifest, self.source(nearby=nearby), dest, force=force, progress=progress)
