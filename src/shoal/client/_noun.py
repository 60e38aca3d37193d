"""What the modules of one noun each share."""

from __future__ import annotations

from shoal.client._http import Http, segment


class Noun:
    def __init__(self, http: Http):
        self._http = http


class WorkspaceNoun:
    """A noun whose things live in a workspace."""

    def __init__(self, http: Http, workspace: str):
        self._http = http
        self._workspace = workspace

    def _path(self, *parts: str) -> str:
        return "/".join(["/workspaces", segment(self._workspace), *parts])
