"""Finds scripts that never read the checkpoint they were given, and so train from the beginning.

The kernel reports reads of the checkpoint's files (inotify), whichever path, sandbox or library they are made through. Access
times would not do: most disks are mounted without them, and other jobs on the machine share the files.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import struct
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shoal.agent.data.inputs import CHECKPOINT
from shoal.agent.data.workdir_checkpoints import is_state

logger = logging.getLogger(__name__)

_ACCESS, _CLOSE_NOWRITE, _IS_DIR, _OVERFLOW = 0x1, 0x10, 0x40000000, 0x4000
_MODIFY, _MOVED_TO, _CREATE = 0x2, 0x80, 0x100
_WRITTEN = _MODIFY | _MOVED_TO | _CREATE
_NONBLOCK, _CLOEXEC = os.O_NONBLOCK, os.O_CLOEXEC
_EVENT = struct.Struct("iIII")
_MOST_FOLDERS = 2_000
_PATIENCE_S, _STEPS = 10.0, 2
"""A script that loads late does so before it has made this many steps, and within this time after its first."""


class ReadWatch:
    """Watches folders for reads of files in them; `names` limits a folder to some files (None: all).

    Once the script has written weights to a folder, reads there no longer count: the agent itself reads them to upload them.
    """

    def __init__(self, folders: Mapping[Path, set[str] | None]):
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._call(self._libc.inotify_init1, _NONBLOCK | _CLOEXEC)
        self._names: dict[int, set[str] | None] = {}
        try:
            for folder, names in folders.items():
                mask = _ACCESS | _CLOSE_NOWRITE | _WRITTEN  # the second one for files that are mapped into memory
                self._names[self._call(self._libc.inotify_add_watch, self._fd, os.fsencode(folder), mask)] = names
        except OSError:
            self.close()
            raise

    def was_read(self) -> bool:
        """Return whether a file was read since the last call."""
        found = False
        while True:
            try:
                data = os.read(self._fd, 65536)
            except BlockingIOError:
                return found
            at = 0
            while at < len(data):
                watch, mask, _, length = _EVENT.unpack_from(data, at)
                name = data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0").decode(errors="replace")
                at += _EVENT.size + length
                wanted = self._names.get(watch)
                if mask & _WRITTEN:
                    if is_state(name):
                        self._names[watch] = set()
                    continue
                found |= bool(mask & _OVERFLOW) or (
                    not mask & _IS_DIR and bool(name) and (wanted is None or name in wanted)
                )

    def close(self) -> None:
        os.close(self._fd)

    @staticmethod
    def _call(function: Any, *arguments: Any) -> int:
        result = int(function(*arguments))
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), errno.errorcode.get(code, ""))
        return result


class CheckpointReads:
    """Says once that the checkpoint was not read, when the script trains without it or has ended.

    One thread calls `poll` regularly and another one `finish` at the end; the lock keeps one from closing what the other reads.
    """

    def __init__(
        self,
        watch: ReadWatch | None,
        checkpoint: str,
        progress: Callable[[], dict[str, Any] | None],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._watch = watch
        self._checkpoint, self._progress, self._say, self._clock = checkpoint, progress, say, clock
        self._lock = threading.Lock()
        self._first: tuple[float, int] | None = None
        """Time and number of the first step that was seen."""

    def poll(self) -> None:
        with self._lock:
            if self._watch is None or self._is_read():
                return
            now, step = self._clock(), self._step()
            if step is None:
                return
            if self._first is None:
                self._first = now, step
            if now - self._first[0] >= _PATIENCE_S and step - self._first[1] >= _STEPS:
                self._warn(f"the script has not read it by step {step}")

    def finish(self, *, well: bool) -> None:
        """Decide at the end of the workers; `well`: all of them succeeded."""
        with self._lock:
            if self._watch is None or self._is_read():
                return
            if well or self._step() is not None:
                self._warn("the script ended without reading it")
            else:
                self._close()

    def _step(self) -> int | None:
        step = (self._progress() or {}).get("step")
        return int(step) if isinstance(step, int | float) else None

    def _is_read(self) -> bool:
        if self._watch is not None and self._watch.was_read():
            self._close()
        return self._watch is None

    def _warn(self, what: str) -> None:
        self._close()
        self._say(
            f"checkpoint {self._checkpoint} is at {CHECKPOINT}, but {what}: it trains from the beginning. "
            f"Load it from the folder in $SHOAL_RESUME_FROM, or let run.prepare of the SDK do so."
        )

    def _close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None


def watch(
    checkpoint: str,
    root: Path,
    restored: Mapping[Path, set[str]],
    progress: Callable[[], dict[str, Any] | None],
    say: Callable[[str], None],
) -> CheckpointReads:
    """Watch a checkpoint and the files that were restored from it; nothing comes of it where the kernel does not allow that."""
    folders: dict[Path, set[str] | None] = dict(restored)
    for folder, _, _ in os.walk(root):
        folders[Path(folder)] = None
    kernel = None
    try:
        kernel = ReadWatch(folders) if len(folders) <= _MOST_FOLDERS else None
    except (OSError, AttributeError) as error:
        logger.info("reads of the checkpoint are not watched: %s", error)
    return CheckpointReads(kernel, checkpoint, progress, say)
