"""Failed steps of jobs: their capsules and the code they ran, to replay them on this machine."""

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
        """List the failed steps of a job, oldest first."""
        return self._http.fetch(list[BugView], self._job(job, "bugs"))

    def fetch(self, job: str, bug: str, dest: Path, *, progress: Progress | None = None) -> Fetched:
        """Write the files of a failed step's capsule to `dest`."""
        manifest = self._trees.manifest(self._job(job, "bugs", segment(bug), "manifest"))
        return self._trees.fetch(manifest, dest, force=True, progress=progress)

    def fetch_source(self, job: str, dest: Path) -> Fetched:
        """Write the job's code, as it was submitted, to `dest`."""
        manifest = self._trees.manifest(self._job(job, "source", "manifest"))
        return self._trees.fetch(manifest, dest, force=False, progress=None)

    def _job(self, job: str, *parts: str) -> str:
        return self._path("jobs", segment(job), *parts)
