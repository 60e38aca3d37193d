"""Runs made elsewhere, on their way into a server."""

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
from shoal.core.checkpoints import CheckpointCommit, CheckpointCommitted
from shoal.core.errors import OutOfSequence
from shoal.core.jobs import JobSummary
from shoal.core.metrics import MediaCommit, MediaCommitted, RunImport, RunImported, RunState

if TYPE_CHECKING:
    from shoal.store.pack import Entry, PackedTree, Progress


class Runs(WorkspaceNoun):
    def __init__(self, http: Http, workspace: str):
        super().__init__(http, workspace)
        self._store = Store(http, workspace)

    def begin(self, run: RunImport) -> RunImported:
        """The job of a run, made unless it is there; and how many lines of each part the server has."""
        return self._http.call(RunImported, "POST", self._path("imports"), run, repeatable=True)

    def send_lines(self, job: str, stream: str, part: str, first: int, lines: list[bytes]) -> int:
        """Lines of a file from number `first` on; returns how many of it the server has now."""
        body = zstandard.ZstdCompressor(level=3).compress(b"\n".join(lines))
        params = {"part": part, "seq_first": first, "count": len(lines)}
        path = self._job(job, "segments", stream)
        try:
            # Each line counts once, however often it is sent.
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
        """`commit` without its manifest, which comes with the tree."""

        def ask(packed: PackedTree) -> list[str]:
            wanted = commit.model_copy(update={"manifest": packed.manifest})
            path = self._job(job, "checkpoints")
            return self._http.call(
                CheckpointCommitted, "POST", path, wanted, timeout_s=COMMIT_TIMEOUT_S, repeatable=True
            ).missing

        send_tree(self._store, tree, ask, progress)

    def send_media(self, job: str, commit: MediaCommit, tree: PackedTree) -> None:
        def ask(_: PackedTree) -> list[str]:
            path = self._job(job, "media")
            return self._http.call(MediaCommitted, "POST", path, commit, repeatable=True).missing

        send_tree(self._store, tree, ask)

    def send_bug(self, job: str, commit: BugCommit, tree: PackedTree) -> None:
        def ask(_: PackedTree) -> list[str]:
            path = self._job(job, "bugs")
            return self._http.call(BugCommitted, "POST", path, commit, repeatable=True).missing

        send_tree(self._store, tree, ask)

    def set_state(self, job: str, state: RunState) -> JobSummary:
        return self._http.call(JobSummary, "POST", self._job(job, "state"), state, repeatable=True)

    def _job(self, job: str, *parts: str) -> str:
        return self._path("jobs", segment(job), "import", *parts)
