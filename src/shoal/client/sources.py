"""Sources: the code of a job, committed by manifest or fetched from git by the server."""

from __future__ import annotations

from shoal.client._noun import WorkspaceNoun
from shoal.core.artifacts import Manifest, SourceCommit, SourceView
from shoal.core.people import GitFetch

GIT_TIMEOUT_S = 300.0


class Sources(WorkspaceNoun):
    def commit(self, manifest: Manifest, origin: dict[str, str] | None = None) -> SourceView:
        """Committed once `missing` comes back empty; until then upload those chunks and commit again."""
        wanted = SourceCommit(manifest=manifest, origin=origin or {})
        return self._http.call(SourceView, "POST", self._path("sources"), wanted, repeatable=True)

    def fetch_git(
        self, *, url: str | None = None, source_name: str | None = None, revision: str | None = None
    ) -> SourceView:
        """The server clones the repository (or the named one) at a revision."""
        wanted = GitFetch(url=url, source_name=source_name, revision=revision)
        path = self._path("sources", "git")
        return self._http.call(SourceView, "POST", path, wanted, repeatable=True, timeout_s=GIT_TIMEOUT_S)
