"""Sources: the code of a job, uploaded by manifest, or fetched by the server from a git repository or a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.client._http import segment
from shoal.client._noun import WorkspaceNoun
from shoal.client._push import send_tree
from shoal.client.store import Store
from shoal.core.artifacts import Manifest, SourceCommit, SourceView
from shoal.core.checks import CodeCheckView
from shoal.core.jobs import JobSpec
from shoal.core.notebooks import NotebookFetch, NotebookSource, Receipt
from shoal.core.people import GitFetch

if TYPE_CHECKING:
    from shoal.store.pack import PackedTree, Progress

GIT_TIMEOUT_S = 300.0
NOTEBOOK_TIMEOUT_S = 180.0


class Sources(WorkspaceNoun):
    def commit(self, manifest: Manifest, origin: dict[str, str] | None = None) -> SourceView:
        """Commit a source. While `missing` is not empty, it is not committed: upload these chunks and commit again."""
        wanted = SourceCommit(manifest=manifest, origin=origin or {})
        return self._http.call(SourceView, "POST", self._path("sources"), wanted, repeatable=True)

    def send(
        self, packed: PackedTree, origin: dict[str, str] | None = None, *, progress: Progress | None = None
    ) -> tuple[SourceView, int]:
        """Upload the missing chunks of a source and commit it; return it and the number of bytes sent."""
        answers: list[SourceView] = []

        def commit(tree: PackedTree) -> list[str]:
            answers.append(self.commit(tree.manifest, origin))
            return answers[-1].missing

        sent = send_tree(Store(self._http, self._workspace), packed, commit, progress).sent
        return answers[-1], sent

    def fetch_git(
        self, *, url: str | None = None, source_name: str | None = None, revision: str | None = None
    ) -> SourceView:
        """Let the server clone a repository, given by URL or by its name in the workspace, at a revision."""
        wanted = GitFetch(url=url, source_name=source_name, revision=revision)
        path = self._path("sources", "git")
        return self._http.call(SourceView, "POST", path, wanted, repeatable=True, timeout_s=GIT_TIMEOUT_S)

    def fetch_notebook(self, url: str, *, token: str | None = None, entry_cell: str | None = None) -> NotebookSource:
        """Let the server fetch a notebook and convert it to a script. `token` is for notebooks that are not public."""
        wanted = NotebookFetch(url=url, token=token, entry_cell=entry_cell)
        path = self._path("sources", "notebook")
        return self._http.call(NotebookSource, "POST", path, wanted, repeatable=True, timeout_s=NOTEBOOK_TIMEOUT_S)

    def check(self, spec: JobSpec) -> CodeCheckView:
        """Return the findings of the code check for a job whose source is on the server. Nothing is run."""
        return self._http.call(CodeCheckView, "POST", self._path("sources", "check"), spec, repeatable=True)

    def receipt(self, source_id: str) -> Receipt:
        """Return the receipt of a source that was made from a notebook: what became of each cell."""
        return self._http.fetch(Receipt, self._path("sources", segment(source_id), "receipt"))
