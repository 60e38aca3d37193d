"""Workspaces the user is a member of."""

from __future__ import annotations

from shoal.client._http import segment
from shoal.client._noun import Noun
from shoal.core.people import WorkspaceCreate, WorkspaceRename, WorkspaceView


class Workspaces(Noun):
    def create(self, name: str) -> WorkspaceView:
        return self._http.call(WorkspaceView, "POST", "/workspaces", WorkspaceCreate(name=name))

    def list(self) -> list[WorkspaceView]:
        return self._http.fetch(list[WorkspaceView], "/workspaces")

    def rename(self, name: str, new_name: str) -> WorkspaceView:
        path = f"/workspaces/{segment(name)}"
        return self._http.call(WorkspaceView, "PATCH", path, WorkspaceRename(name=new_name))

    def delete(self, name: str) -> None:
        self._http.send("DELETE", f"/workspaces/{segment(name)}")
