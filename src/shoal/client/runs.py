"""Runs: queries over all jobs, tags and notes, saved views; and import of runs that were made elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import zstandard

from shoal.client._http import Http, segment
from shoal.client._noun import WorkspaceNoun
from shoal.client._push import COMMIT_TIMEOUT_S, send_tree
from shoal.client.store import Store
from shoal.core.agents import SegmentReply
from shoal.core.bugs import BugCommit, BugCommitted
from shoal.core.charts import Mark, NoteSave, StepNoteView
from shoal.core.checkpoints import CheckpointCommit, CheckpointCommitted
from shoal.core.errors import OutOfSequence
from shoal.core.jobs import JobSummary
from shoal.core.metrics import MediaCommit, MediaCommitted, RunImport, RunImported, RunState
from shoal.core.runs import RunAbout, RunChange, RunColumns, RunsPage, RunsView, RunsViewSave

if TYPE_CHECKING:
    from shoal.store.pack import Entry, PackedTree, Progress


class Runs(WorkspaceNoun):
    def __init__(self, http: Http, workspace: str):
        super().__init__(http, workspace)
        self._store = Store(http, workspace)

    def begin(self, run: RunImport) -> RunImported:
        """Return the job of a run, creating it if necessary, with the number of lines the server already has of each part."""
        return self._http.call(RunImported, "POST", self._path("imports"), run, repeatable=True)

    def send_lines(self, job: str, stream: str, part: str, first: int, lines: list[bytes]) -> int:
        """Send lines of a file, beginning with number `first`; return the number of its lines the server has now."""
        body = zstandard.ZstdCompressor(level=3).compress(b"\n".join(lines))
        params = {"part": part, "seq_first": first, "count": len(lines)}
        path = self._job(job, "segments", stream)
        try:
            # Lines are numbered, so sending them again is harmless.
            answer = self._http.send("POST", path, body=body, params=params, repeatable=True)
        except OutOfSequence as error:
            return int(error.details["next_seq"])
        return SegmentReply.model_validate_json(answer.content).next_seq

    def send_checkpoint(
        self,
        job: str,
        commit: CheckpointCommit,
        tree: PackedTree | Sequence[Entry],
        progress: Progress | None = None,
    ) -> None:
        """Upload a checkpoint of the run. The manifest of `commit` is replaced by that of the tree."""

        def commit_once(packed: PackedTree) -> list[str]:
            wanted = commit.model_copy(update={"manifest": packed.manifest})
            path = self._job(job, "checkpoints")
            return self._http.call(
                CheckpointCommitted, "POST", path, wanted, timeout_s=COMMIT_TIMEOUT_S, repeatable=True
            ).missing

        send_tree(self._store, tree, commit_once, progress)

    def send_media(self, job: str, commit: MediaCommit, tree: PackedTree) -> None:
        def commit_once(_: PackedTree) -> list[str]:
            path = self._job(job, "media")
            return self._http.call(MediaCommitted, "POST", path, commit, repeatable=True).missing

        send_tree(self._store, tree, commit_once)

    def send_bug(self, job: str, commit: BugCommit, tree: PackedTree) -> None:
        def commit_once(_: PackedTree) -> list[str]:
            path = self._job(job, "bugs")
            return self._http.call(BugCommitted, "POST", path, commit, repeatable=True).missing

        send_tree(self._store, tree, commit_once)

    def set_state(self, job: str, state: RunState) -> JobSummary:
        """Set the state of an imported run."""
        return self._http.call(JobSummary, "POST", self._job(job, "state"), state, repeatable=True)

    def query(
        self,
        q: str = "",
        *,
        sort: str = "",
        columns: Sequence[str] = (),
        group: Sequence[str] = (),
        limit: int = 100,
        offset: int = 0,
    ) -> RunsPage:
        """Return the runs that a query matches, or groups of them.

        q: for example `lr>1e-4 tag:ablation status:failed loss.min<2 user:ada`
        sort: a column, with `-` in front for descending order
        columns: values to return: parameters, or metrics with `.last`, `.min`, `.max`, `.step` or `.count`
        group: columns with equal values, or `-seed` for all parameters but the seed

        Example: `client.runs.query("tag:ablation", group=["-seed"], columns=["loss.min"]).groups`
        """
        params = {"q": q or None, "sort": sort or None, "column": list(columns) or None, "group": list(group) or None}
        return self._http.fetch(RunsPage, self._path("runs", "query"), **params, limit=limit, offset=offset)

    def csv(self, q: str = "", *, sort: str = "", columns: Sequence[str] = (), group: Sequence[str] = ()) -> str:
        """Return what a query matches as CSV."""
        params = {"q": q or None, "sort": sort or None, "column": list(columns) or None, "group": list(group) or None}
        return self._http.send("GET", self._path("runs", "csv"), params=params).text

    def columns(self) -> RunColumns:
        """Return the parameters, metrics and tags of the newest runs."""
        return self._http.fetch(RunColumns, self._path("runs", "columns"))

    def change(self, change: RunChange) -> list[RunAbout]:
        """Change tags, title, description, note, star or archive of jobs: all of them, or none if one is unknown."""
        return self._http.call(list[RunAbout], "PATCH", self._path("runs"), change, repeatable=True)

    def notes(self, job: str) -> list[StepNoteView]:
        """List the notes at steps of a run."""
        return self._http.fetch(list[StepNoteView], self._notes(job))

    def add_note(self, job: str, step: int, text: str) -> Mark:
        """Write a note at a step of a run; it is shown on its curves.

        Example: `client.runs.add_note("hello", 900, "warm-up ends")`
        """
        return self._http.call(Mark, "POST", self._notes(job), NoteSave(step=step, text=text))

    def change_note(self, job: str, note: int, step: int, text: str) -> StepNoteView:
        """Change the step and the text of a note."""
        request = NoteSave(step=step, text=text)
        return self._http.call(StepNoteView, "PUT", self._notes(job, str(note)), request, repeatable=True)

    def delete_note(self, job: str, note: int) -> None:
        """Delete a note at a step of a run."""
        self._http.send("DELETE", self._notes(job, str(note)))

    def views(self) -> list[RunsView]:
        """List the saved views of the workspace."""
        return self._http.fetch(list[RunsView], self._path("run-views"))

    def view(self, name: str) -> RunsView:
        return self._http.fetch(RunsView, self._path("run-views", segment(name)))

    def save_view(self, name: str, view: RunsViewSave) -> RunsView:
        """Save a query under a name, replacing the view that has it."""
        return self._http.call(RunsView, "PUT", self._path("run-views", segment(name)), view, repeatable=True)

    def delete_view(self, name: str) -> None:
        self._http.send("DELETE", self._path("run-views", segment(name)))

    def _notes(self, job: str, *parts: str) -> str:
        return self._path("jobs", segment(job), "notes", *parts)

    def _job(self, job: str, *parts: str) -> str:
        return self._path("jobs", segment(job), "import", *parts)
