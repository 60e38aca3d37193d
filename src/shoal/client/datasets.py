"""Datasets: push, list, download, delete. `NAME` means the newest version, `NAME@3` the third."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.client._http import Http, segment
from shoal.client._http import parse as parse_reply
from shoal.client._noun import WorkspaceNoun
from shoal.client._push import COMMIT_TIMEOUT_S, send_tree
from shoal.client._trees import Trees
from shoal.client.store import Store
from shoal.core.datasets import (
    DatasetBegin,
    DatasetCommitted,
    DatasetFail,
    DatasetImport,
    DatasetStatus,
    DatasetView,
    FileView,
)
from shoal.core.errors import Internal, NotFound, ShoalError

if TYPE_CHECKING:
    from shoal.client._fetch import Fetched
    from shoal.core.artifacts import FileEntry, Manifest
    from shoal.store.known import KnownFiles
    from shoal.store.pack import Entry, PackedTree, Progress

PAGE = 10_000
IMPORT_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Pushed:
    """Result of a push."""

    dataset: DatasetView
    unchanged: bool
    """True if the content equals the newest version, so no new version was made."""
    sent: int
    """Bytes sent, before compression."""


class Datasets(WorkspaceNoun):
    """Datasets of a workspace. Each is given as NAME, NAME@VERSION or an id."""

    def __init__(self, http: Http, workspace: str):
        super().__init__(http, workspace)
        self._store = Store(http, workspace)
        self._trees = Trees(http, workspace)

    def push(
        self,
        name: str,
        tree: PackedTree | Sequence[Entry],
        origin: dict[str, str] | None = None,
        progress: Progress | None = None,
        *,
        known: KnownFiles | None = None,
    ) -> Pushed:
        """Upload a new version from a packed tree, or from entries, which are packed and sent in one pass.

        Only chunks that the server does not have are sent, so a repeated push continues an interrupted one. If the push fails,
        the error is reported to the server, which shows it with the version; an interruption (Ctrl-C) is not reported. Files in
        `known` are not read again.
        """
        wanted = DatasetBegin(name=name, origin=origin or {})
        begun = self._http.call(DatasetView, "POST", self._path("datasets"), wanted)
        done: list[DatasetCommitted] = []

        def commit(packed: PackedTree) -> list[str]:
            done.append(self._commit(begun.id, packed.manifest))
            return done[-1].missing

        try:
            sent = send_tree(self._store, tree, commit, progress, known).sent
        except ShoalError as error:
            self._fail(begun.id, error)
            raise
        if done[-1].dataset is None:
            raise Internal(
                "The answer of the server is not valid.",
                hint="Client and server may have different versions: shoal version",
            )
        return Pushed(done[-1].dataset, done[-1].unchanged, sent)

    def import_url(
        self, name: str, url: str, *, origin: dict[str, str] | None = None, credentials: dict[str, str] | None = None
    ) -> DatasetView:
        """Let the server fetch a new version from http(s)://, s3:// or hf://. The import continues without this client."""
        given = {"credentials": credentials} if credentials else {}
        wanted = DatasetImport.model_validate({"name": name, "url": url, "origin": origin or {}, **given})
        return self._http.call(DatasetView, "POST", self._path("datasets", "import"), wanted)

    def wait(self, begun: DatasetView, told: Callable[[DatasetView], None] = lambda _: None) -> DatasetView:
        """Wait until an import is available or has failed. `told` is called with each view of it.

        If no new version was made, another version is returned: the imported content equals it, or the new version was deleted.
        """
        while True:
            try:
                view = self.get(begun.id)
            except NotFound:
                return self.get(begun.name)
            told(view)
            if view.status in (DatasetStatus.AVAILABLE, DatasetStatus.ERROR):
                return view
            self._http.sleep(IMPORT_POLL_S)

    def list(self) -> list[DatasetView]:
        """List all versions of all datasets, newest first."""
        return self._http.fetch(list[DatasetView], self._path("datasets"))

    def get(self, dataset: str) -> DatasetView:
        return self._http.fetch(DatasetView, self._dataset(dataset))

    def manifest(self, dataset: str) -> Manifest:
        return self._trees.manifest(self._dataset(dataset, "manifest"))

    def files(self, dataset: str) -> Iterator[FileView]:
        """Yield the files of a version, sorted by path."""
        after = ""
        while page := self._http.fetch(list[FileView], self._dataset(dataset, "files"), after=after, limit=PAGE):
            yield from page
            after = page[-1].path

    def open(self, file: FileEntry) -> io.BufferedReader:
        """Open a file of a version's manifest as a seekable stream; only the chunks that are read are downloaded."""
        return self._trees.open(file)

    def fetch(
        self, dataset: str, dest: Path, *, force: bool = False, progress: Progress | None = None, nearby: bool = True
    ) -> Fetched:
        """Write the files of a version to `dest`, continuing an earlier download.

        `nearby` allows reading the store directly if the server is our own, on this machine.
        """
        return self._trees.fetch(self.manifest(dataset), dest, force=force, progress=progress, nearby=nearby)

    def delete(self, dataset: str) -> int:
        """Delete a version, or all versions if only a name is given; return the number of deleted versions."""
        return int(self._http.send("DELETE", self._dataset(dataset)).json()["deleted"])

    def _commit(self, dataset_id: str, manifest: Manifest) -> DatasetCommitted:
        from shoal.store.manifest import dump_manifest

        path = self._dataset(dataset_id, "manifest")
        return parse_reply(
            DatasetCommitted, self._http.send("PUT", path, body=dump_manifest(manifest), timeout_s=COMMIT_TIMEOUT_S)
        )

    def _fail(self, dataset_id: str, error: ShoalError) -> None:
        try:
            self._http.send("POST", self._dataset(dataset_id, "fail"), body=DatasetFail(error=error.message[:1000]))
        except ShoalError:
            pass  # the server may be what failed

    def _dataset(self, dataset: str, *parts: str) -> str:
        return self._path("datasets", segment(dataset), *parts)
