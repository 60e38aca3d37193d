"""Failed steps of jobs: what was kept of them, and the code they ran, to replay them here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shoal.client._http import Http, segment
from shoal.client._noun import WorkspaceNoun
from shoal.client._trees import Trees
from shoal.core.bugs import BugView

if TYPE_CHECKING:
    from shoal.client._fetch import Fetched
    from shoal.store.pack import Progress


class Bugs(WorkspaceNoun):
    def __init__(self, http: Http, workspace: str):
        super().__init__(http, workspace)
        self._trees = Trees(http, workspace)

    def list(self, job: str) -> list[BugView]:
        """Oldest first."""
        return self._http.fetch(list[BugView], self._job(job, "bugs"))

    def fetch(self, job: str, bug: str, dest: Path, *, progress: Progress | None = None) -> Fetched:
        """Write the files of its capsule to `dest`."""
        manifest = self._trees.manifest(self._job(job, "bugs", segment(bug), "manifest"))
        return self._trees.fetch(manifest, dest, force=True, progress=progress)

    def fetch_source(self, job: str, dest: Path) -> Fetched:
        """Write the job's code, as it was submitted, to `dest`."""
        manifest = self._trees.manifest(self._job(job, "source", "manifest"))
        return self._trees.fetch(manifest, dest, force=False, progress=None)

    def _job(self, job: str, *parts: str) -> str:
        return self._path("jobs", segment(job), *parts)
