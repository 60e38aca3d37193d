"""Code check (`shoal check`) of sources in the store: those the server fetched, and drafts in the console."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from shoal.check.job_facts import MOST_BYTES, JobFacts, facts_of
from shoal.check.runner import check
from shoal.check.source import MAX_FILE_BYTES, Source
from shoal.core.artifacts import FileEntry
from shoal.core.checks import CodeCheckView
from shoal.core.errors import ShoalError
from shoal.core.jobs import JobSpec
from shoal.server import lookup
from shoal.server.context import Context
from shoal.server.policy import Access
from shoal.store.blobstore import BlobStore

logger = logging.getLogger(__name__)


def of_job(ctx: Context, access: Access, spec: JobSpec) -> CodeCheckView:
    """Return the problems in a job's code. The code is not run, and if the check itself fails it returns no problems."""
    with ctx.db.read() as session:
        manifest_id = lookup.source(session, access, spec.source_id).manifest_id
    script, asked = facts_of(spec, spec.entry)
    if script is None:
        return CodeCheckView()
    try:
        return _check_cached(ctx.store, manifest_id, script, asked)
    except Exception as error:
        logger.warning("source %s could not be checked: %s: %s", spec.source_id, type(error).__name__, error)
        return CodeCheckView()


@lru_cache(maxsize=128)
def _check_cached(store: BlobStore, manifest_id: str, script: str, asked: JobFacts) -> CodeCheckView:
    """Check a script; cached, because the console requests it repeatedly while a person fills in a form."""
    source = _Stored(store, store.get_manifest(manifest_id).files)
    if script not in source.paths:
        return CodeCheckView()
    return check(source, script, asked, max_bytes=MOST_BYTES)


class _Stored(Source):
    """Source in the store; it has no folder, so there are no files besides those of the job."""

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

    def excludes(self, path: str) -> bool:
        return False
