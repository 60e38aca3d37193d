"""Rank 0's writer: one thread of low priority, at most one checkpoint under way, committed by a rename or not at all."""

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
from shoal.sdk.saving.extras import take_along
from shoal.sdk.saving.snapshot import Snapshot

logger = logging.getLogger(__name__)

_NICE = 10
"""Writing yields to training where cores are scarce, but not so far that it holds the interpreter without running."""


@dataclass(slots=True, kw_only=True)
class Job:
    """One checkpoint on its way to the disk."""

    snapshot: Snapshot
    about: Mapping[str, Any]
    """What shoal.json is to say beside the list of files."""
    complete: Callable[[Snapshot], Mapping[str, Any]]
    """Called in the writer's thread; the files, with what the other ranks had to add."""
    done: Callable[[Path | None], None] = lambda path: None
    """Called in the writer's thread with where it is, or None if it could not be written."""
    finished: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None


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
        """Write a snapshot that is complete. The caller has made sure that nothing else is under way."""
        with self._wake:
            self._job = job
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="shoal-save", daemon=True)
                self._thread.start()
            self._wake.notify_all()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until nothing is under way; whether that came to be."""
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
            self._warn("checkpoint_failed", f"the checkpoint of step {job.snapshot.step} was not saved: {error}")
        try:
            job.done(path)
            if path is not None:
                layout.prune(self._directory, self._keep)
        except Exception as error:
            logger.warning("shoal: after a checkpoint: %s", error)
        with self._wake:
            self._job = None
        job.finished.set()

    def _write(self, job: Job) -> Path:
        files = job.complete(job.snapshot)
        final = self._directory / layout.name_of(job.snapshot.step)
        partial = self._directory / f".tmp-{final.name}"
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
            listed = {name: write_archive(partial / name, value) for name, value in files.items()}
            take_along(self._directory, partial)
            layout.write_about(partial, {**job.about, "files": listed})
            layout.commit(partial, final)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return final


def explained(error: Exception) -> ShoalError:
    """For the one who waits for the checkpoint."""
    if isinstance(error, ShoalError):
        return error
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(f"The checkpoint was not saved: the disk is full ({error.filename or error}).")
    return Refused(f"The checkpoint was not saved: {type(error).__name__}: {error}")


def _lower_priority() -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
