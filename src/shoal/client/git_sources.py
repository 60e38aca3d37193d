"""Named git repositories, for `training run --source-name`."""

from __future__ import annotations

from shoal.client._http import segment
from shoal.client._noun import WorkspaceNoun
from shoal.core.people import GitSourceAdd, GitSourceView


class GitSources(WorkspaceNoun):
    def add(self, name: str, url: str, revision: str | None = None) -> GitSourceView:
        wanted = GitSourceAdd(name=name, url=url, revision=revision)
        return self._http.call(GitSourceView, "POST", self._path("git-sources"), wanted)

    def list(self) -> list[GitSourceView]:
        return self._http.fetch(list[GitSourceView], self._path("git-sources"))

    def delete(self, name: str) -> None:
        self._http.send("DELETE", self._path("git-sources", segment(name)))
