"""Disk use of jobs: sizes of their working directories, measured on demand with a limit on time and files."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import select

from shoal.core.errors import ShoalError, StorageFull
from shoal.server.context import Context
from shoal.server.disk_reserve import free_bytes
from shoal.server.models.jobs import Attempt, Job
from shoal.store.ignore import human_size

_MOST_ENTRIES, _MOST_S = 50_000, 1.0
_KEPT_S = 10.0
_SHOWN = 3


class Use(NamedTuple):
    """Bytes on disk that one job's working directories use."""

    job_id: str
    job: str
    size: int


_lock = threading.Lock()
_known: dict[Path, tuple[float, list[Use]]] = {}


def largest(ctx: Context) -> list[Use]:
    """Return the jobs whose working directories on this machine use the most space, largest first; cached for seconds."""
    folder = ctx.layout.nodes_dir
    with _lock:
        at, found = _known.get(folder, (float("-inf"), []))
        if time.monotonic() - at > _KEPT_S:
            found = _measure(ctx, folder)
            _known[folder] = (time.monotonic(), found)
        return found


def explain(ctx: Context, error: StorageFull) -> StorageFull:
    """Add the free space and the largest jobs to an error.

    On a shared server the names are left out, as they are for admins only.
    """
    free = f" {human_size(free_bytes(ctx.layout.root))} are free."
    if not ctx.private:
        return StorageFull(error.message + free, hint=error.hint, details=error.details)
    uses = largest(ctx)
    named = f" The jobs that use the most space here: {words(uses)}." if uses else ""
    hint = f"shoal training stop {uses[0].job}, then: shoal training delete {uses[0].job}" if uses else error.hint
    return StorageFull(error.message + free + named, hint=hint, details=error.details)


def words(uses: list[Use]) -> str:
    return ", ".join(f"job '{use.job}' ({human_size(use.size)})" for use in uses[:_SHOWN])


def measured(folder: Path, attempt_ids: Collection[str]) -> tuple[dict[str, int], bool]:
    """Return the bytes of these attempts' working directories, and whether all their files were counted."""
    sizes: dict[str, int] = dict.fromkeys(attempt_ids, 0)
    deadline, left = time.monotonic() + _MOST_S, _MOST_ENTRIES
    for entry in _entries(folder):
        attempt_id = entry.name.rpartition(".")[0]
        if attempt_id in sizes:
            size, left = _size_of(entry, left, deadline)
            sizes[attempt_id] += size
    return sizes, left > 0 and time.monotonic() < deadline


def _measure(ctx: Context, folder: Path) -> list[Use]:
    sizes: dict[str, int] = {}
    deadline, left = time.monotonic() + _MOST_S, _MOST_ENTRIES
    for entry in _entries(folder):
        size, left = _size_of(entry, left, deadline)
        attempt_id = entry.name.rpartition(".")[0]
        sizes[attempt_id] = sizes.get(attempt_id, 0) + size
    try:
        with ctx.db.read() as session:
            rows = session.execute(
                select(Attempt.id, Job.id, Job.name)
                .join(Job, Job.id == Attempt.job_id)
                .where(Attempt.id.in_(sorted(sizes, key=lambda a: -sizes[a])[:500]))
            ).all()
    except ShoalError:
        return []
    found: dict[tuple[str, str], int] = {}
    for attempt_id, job_id, name in rows:
        found[job_id, name] = found.get((job_id, name), 0) + sizes[attempt_id]
    uses = [Use(job_id, name, size) for (job_id, name), size in found.items()]
    return sorted(uses, key=lambda use: -use.size)


def _size_of(root: os.DirEntry[str], left: int, deadline: float) -> tuple[int, int]:
    """Return the bytes on disk, and how many more directory entries may be examined."""
    size, pending = 0, [root.path]
    while pending and left > 0 and time.monotonic() < deadline:
        for entry in _entries(Path(pending.pop())):
            left -= 1
            try:
                size += entry.stat(follow_symlinks=False).st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
            except OSError:
                continue
    return size, left


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []
