"""Sources: the code of a job, committed by manifest or fetched by the server: a repository, or a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.client._http import segment
from shoal.client._noun import WorkspaceNoun
from shoal.client.store import Store
from shoal.core.artifacts import Manifest, SourceCommit, SourceView
from shoal.core.checks import CodeCheckView
from shoal.core.errors import Refused
from shoal.core.jobs import JobSpec
from shoal.core.notebooks import NotebookFetch, NotebookSource, Receipt
from shoal.core.people import GitFetch

if TYPE_CHECKING:
    from shoal.store.pack import PackedTree, Progress

GIT_TIMEOUT_S = 300.0
NOTEBOOK_TIMEOUT_S = 180.0
_COMMIT_TRIES = 3


class Sources(WorkspaceNoun):
    def commit(self, manifest: Manifest, origin: dict[str, str] | None = None) -> SourceView:
        """Committed once `missing` comes back empty; until then upload those chunks and commit again."""
        wanted = SourceCommit(manifest=manifest, origin=origin or {})
        return self._http.call(SourceView, "POST", self._path("sources"), wanted, repeatable=True)

    def send(
        self, packed: PackedTree, origin: dict[str, str] | None = None, *, progress: Progress | None = None
    ) -> tuple[SourceView, int]:
        """What the server lacks of it, then the commit; with the bytes sent."""
        from shoal.store.transfer import upload

        for _ in range(_COMMIT_TRIES):
            sent = upload(packed, Store(self._http, self._workspace), progress=progress)
            source = self.commit(packed.manifest, origin)
            if not source.missing:
                return source, sent
        raise Refused("The server keeps losing parts of the source while they are sent. Try again.")

    def fetch_git(
        self, *, url: str | None = None, source_name: str | None = None, revision: str | None = None
    ) -> SourceView:
        """The server clones the repository (or the named one) at a revision."""
        wanted = GitFetch(url=url, source_name=source_name, revision=revision)
        path = self._path("sources", "git")
        return self._http.call(SourceView, "POST", path, wanted, repeatable=True, timeout_s=GIT_TIMEOUT_S)

    def fetch_notebook(self, url: str, *, token: str | None = None, entry_cell: str | None = None) -> NotebookSource:
        """The server fetches a notebook and makes a script of it. `token` is for one that is not public."""
        wanted = NotebookFetch(url=url, token=token, entry_cell=entry_cell)
        path = self._path("sources", "notebook")
        return self._http.call(NotebookSource, "POST", path, wanted, repeatable=True, timeout_s=NOTEBOOK_TIMEOUT_S)

    def check(self, spec: JobSpec) -> CodeCheckView:
        """What is wrong with the code of a job whose source is there; nothing is run."""
        return self._http.call(CodeCheckView, "POST", self._path("sources", "check"), spec, repeatable=True)

    def receipt(self, source_id: str) -> Receipt:
        """What became of each cell of the notebook it was made of."""
        return self._http.fetch(Receipt, self._path("sources", segment(source_id), "receipt"))
