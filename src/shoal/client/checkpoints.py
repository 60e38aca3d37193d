"""Checkpoints: list, download, push, keep, delete."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.client._http import Http, segment
from shoal.client._noun import WorkspaceNoun
from shoal.client._push import COMMIT_TIMEOUT_S, send_tree
from shoal.client._trees import Trees
from shoal.client.store import Store
from shoal.core.checkpoints import (
    CheckpointCommitted,
    CheckpointExport,
    CheckpointFacts,
    CheckpointKeep,
    CheckpointPush,
    CheckpointView,
)
from shoal.core.errors import Internal

if TYPE_CHECKING:
    from shoal.client._fetch import Fetched
    from shoal.core.artifacts import FileEntry, Manifest
    from shoal.store.pack import Entry, PackedTree, Progress

EXPORT_TIMEOUT_S = 86_400.0
WEIGHTS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".distcp", ".npz", ".pkl", ".h5", ".onnx", ".gguf")


class Checkpoints(WorkspaceNoun):
    """Checkpoints of a workspace. Each is given by its id, by the name it was pushed under, or as JOB/NAME."""

    def __init__(self, http: Http, workspace: str):
        super().__init__(http, workspace)
        self._store = Store(http, workspace)
        self._trees = Trees(http, workspace)

    def list(self, job: str | None = None) -> list[CheckpointView]:
        """List the checkpoints of the workspace or of one job, oldest first."""
        return self._http.fetch(list[CheckpointView], self._path("checkpoints"), job=job)

    def newest(self, job: str) -> dict[int, CheckpointView]:
        """Return the newest undamaged checkpoint of each node of a job, by node.

        Checkpoints with logs only count if there is nothing else. Files directly in the output directory may be logs only, so
        they count only if there are weights among them. The working directory counts only if nothing was saved to the output
        directory.
        """
        newest: dict[int, CheckpointView] = {}
        for view in sorted(self.list(job), key=lambda view: view.place == "output"):
            node = view.node or 0
            if not view.damaged and (node not in newest or self._is_model(view)):
                newest[node] = view
        return newest

    def get(self, checkpoint: str) -> CheckpointView:
        return self._http.fetch(CheckpointView, self._checkpoint(checkpoint))

    def manifest(self, checkpoint: str) -> Manifest:
        return self._trees.manifest(self._checkpoint(checkpoint, "manifest"))

    def fetch(
        self, checkpoint: str, dest: Path, *, force: bool = False, progress: Progress | None = None, nearby: bool = True
    ) -> Fetched:
        """Write the files of a checkpoint to `dest`, continuing an earlier download."""
        return self._trees.fetch(self.manifest(checkpoint), dest, force=force, progress=progress, nearby=nearby)

    def open(self, file: FileEntry) -> io.BufferedReader:
        """Open a file of a checkpoint's manifest as a seekable stream; only the chunks that are read are downloaded."""
        return self._trees.open(file)

    def push(
        self,
        name: str,
        tree: PackedTree | Sequence[Entry],
        facts: CheckpointFacts | None = None,
        progress: Progress | None = None,
    ) -> CheckpointView:
        """Upload a checkpoint under a name of its own. Only chunks that the server does not have are sent."""
        done: list[CheckpointCommitted] = []

        def commit(packed: PackedTree) -> list[str]:
            wanted = CheckpointPush(name=name, manifest=packed.manifest, facts=facts or CheckpointFacts())
            path = self._path("checkpoints")
            done.append(self._http.call(CheckpointCommitted, "POST", path, wanted, timeout_s=COMMIT_TIMEOUT_S))
            return done[-1].missing

        send_tree(self._store, tree, commit, progress)
        if done[-1].checkpoint is None:
            raise Internal(
                "The answer of the server is not valid.",
                hint="Client and server may have different versions: shoal version",
            )
        return done[-1].checkpoint

    def export(self, checkpoint: str, destination: str, credentials: dict[str, str] | None = None) -> dict[str, object]:
        """Let the server copy a checkpoint to S3-compatible storage."""
        wanted = CheckpointExport(destination=destination, credentials=credentials or {})
        path = self._checkpoint(checkpoint, "export")
        return self._http.call(dict[str, object], "POST", path, wanted, timeout_s=EXPORT_TIMEOUT_S)

    def keep(self, checkpoint: str, *, keep: bool = True) -> CheckpointView:
        """Protect a checkpoint from retention, or end the protection."""
        return self._http.call(
            CheckpointView, "POST", self._checkpoint(checkpoint, "keep"), CheckpointKeep(keep=keep), repeatable=True
        )

    def delete(self, checkpoint: str) -> None:
        self._http.send("DELETE", self._checkpoint(checkpoint))

    def _is_model(self, view: CheckpointView) -> bool:
        if view.only_logs:
            return False
        if view.name != "." or view.inference_ready or view.step is not None:
            return True
        return any(file.path.lower().endswith(WEIGHTS) for file in self.manifest(view.id).files)

    def _checkpoint(self, checkpoint: str, *parts: str) -> str:
        return self._path("checkpoints", segment(checkpoint), *parts)
