"""The code check (`shoal check`) of a source that is in the store: of what the server fetched, and of drafts in the console."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from shoal.check.asked import MOST_BYTES, Asked, asked_by
from shoal.check.runner import check
from shoal.check.source import MAX_FILE_BYTES, Source
from shoal.core.artifacts import FileEntry
from shoal.core.checks import CodeCheckView
from shoal.core.errors import ShoalError
from shoal.core.jobs import JobSpec
from shoal.server.context import Context
from shoal.server.policy import Access
from shoal.server.services import find
from shoal.store.blobstore import BlobStore

logger = logging.getLogger(__name__)


def of_job(ctx: Context, access: Access, spec: JobSpec) -> CodeCheckView:
    """What is wrong with a job's code. Nothing is run, and a check that fails stands in nobody's way."""
    with ctx.db.read() as session:
        manifest_id = find.source(session, access, spec.source_id).manifest_id
    script, asked = asked_by(spec, spec.entry)
    if script is None:
        return CodeCheckView()
    try:
        return _look(ctx.store, manifest_id, script, asked)
    except Exception as error:
        logger.warning("source %s could not be checked: %s: %s", spec.source_id, type(error).__name__, error)
        return CodeCheckView()


@lru_cache(maxsize=128)
def _look(store: BlobStore, manifest_id: str, script: str, asked: Asked) -> CodeCheckView:
    """A page asks for the same again and again while somebody fills in a form."""
    source = _Stored(store, store.get_manifest(manifest_id).files)
    if script not in source.paths:
        return CodeCheckView()
    return check(source, script, asked, max_bytes=MOST_BYTES)


class _Stored(Source):
    """A source without a folder: nothing stands beside what the job gets."""

    def __init__(self, store: BlobStore, files: Sequence[FileEntry]):
        super().__init__(Path(), (file.path for file in files))
        self._store, self._files = store, {file.path: file for file in files}

    def read(self, path: str) -> str | None:
        file = self._files.get(path)
        if file is None or file.size > MAX_FILE_BYTES:
            return None
        try:
            return b"".join(self._store.get(chunk.hash) for chunk in file.chunks).decode("utf-8-sig")
        except (ShoalError, UnicodeDecodeError):
            return None

    def leaves_out(self, path: str) -> bool:
        return False
