"""Writer of a rank: a thread of low priority that writes one checkpoint at a time and commits it by a rename."""

# Why this is safe: only the training thread starts jobs, and only when none is in progress; the writer's thread finishes
# them. `_job` changes under `_wake`. `is_busy` reads it without the lock: False cannot change under the training thread,
# and an outdated True skips or delays one save. All files are written and synced in `.tmp-step-…`, shoal.json last, and
# become visible in one rename. A crash before the rename leaves the temporary directory, which a resume ignores and a later
# save removes (`layout.prune`). An error in a save is a warning: training continues and older checkpoints stay.

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.core.errors import Refused, ShoalError, StorageFull
from shoal.sdk.saving import layout
from shoal.sdk.saving.archive import write_archive
from shoal.sdk.saving.extras import move_into
from shoal.sdk.saving.staging import StagedCopy

logger = logging.getLogger(__name__)

_NICE = 10
"""Niceness of the writer: it yields to training when cores are scarce, but still runs enough to release the interpreter."""


@dataclass(slots=True, kw_only=True)
class Job:
    """One checkpoint to write."""

    staged: StagedCopy
    about: Mapping[str, Any]
    """Contents of shoal.json beside the list of files."""
    complete: Callable[[StagedCopy], Mapping[str, Any]]
    """Called in the writer's thread: returns the files, with the states of the other ranks."""
    done: Callable[[Path | None], None] = lambda path: None
    """Called in the writer's thread with the path of the checkpoint, or None if it could not be written."""
    finished: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None
    write: Callable[[Mapping[str, Any]], Path | None] | None = None
    """Writes the files instead of the writer, where this rank has only a part of them."""


class Writer:
    def __init__(self, directory: Path, *, keep: int, warn: Callable[[str, str], None]):
        self._directory, self._keep, self._warn = directory, keep, warn
        self._wake = threading.Condition()
        self._job: Job | None = None
        self._closing = False
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        return self._job is not None

    def start(self, job: Job) -> None:
        """Write a complete copy. The caller has made sure that no other job is in progress."""
        with self._wake:
            self._job = job
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="shoal-save", daemon=True)
                self._thread.start()
            self._wake.notify_all()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until no job is in progress. Return False after `timeout_s`."""
        job = self._job
        return job is None or job.finished.wait(timeout_s)

    def close(self, timeout_s: float | None = None) -> bool:
        finished = self.wait(timeout_s)
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        if finished and self._thread is not None:
            self._thread.join()
        return finished

    def _run(self) -> None:
        _lower_priority()
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._job is not None or self._closing)
                job = self._job
            if job is None:
                return
            self._handle(job)

    def _handle(self, job: Job) -> None:
        path: Path | None = None
        try:
            path = self._write(job)
        except Exception as error:
            job.error = error
            self._warn("checkpoint_failed", f"the checkpoint of step {job.staged.step} was not saved: {error}")
        try:
            job.done(path)
            if path is not None:
                layout.prune(self._directory, self._keep)
        except Exception as error:
            logger.warning("shoal: error after a checkpoint was saved: %s", error)
        with self._wake:
            self._job = None
        job.finished.set()

    def _write(self, job: Job) -> Path | None:
        files = job.complete(job.staged)
        if job.write is not None:
            return job.write(files)
        final = self._directory / layout.name_of(job.staged.step)
        partial = self._directory / f".tmp-{final.name}"
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
            listed = {name: write_archive(partial / name, value) for name, value in files.items()}
            move_into(self._directory, partial)
            layout.write_about(partial, {**job.about, "files": listed})
            layout.commit(partial, final)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return final


def explained(error: Exception) -> ShoalError:
    """Return the error to raise to the caller that waits for the checkpoint."""
    if isinstance(error, ShoalError):
        return error
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(f"The checkpoint was not saved: the disk is full ({error.filename or error}).")
    return Refused(f"The checkpoint was not saved: {type(error).__name__}: {error}")


def _lower_priority() -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
