"""Corrects the SDK's last record if the process failed after the SDK recorded that the run had finished.

The SDK writes its last record before the process has ended and cannot see every failure: an explicit SystemExit, an error in
an exit handler, a crash while the interpreter shuts down.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.core import records
from shoal.core.records import Kind

_TAIL = 256 << 10
_SKIPPED = 77
"""Copy of shoal.sdk.trial.SKIPPED, which the agent must not import."""


def correct_end(folder: Path, exit_code: int, reason: str | None = None) -> None:
    """Append a failure record to each rank's file in `folder` whose last record says that the run has finished.

    Called when no worker is left, with the exit code of the failed worker and the reason. The record is in the same file as all
    others, so the server, `shoal sync` and a search read it like any other.
    """
    if exit_code == 0:
        return
    for path in sorted(folder.glob("rank-*.jsonl")):
        with suppress(OSError):
            step = _finished_at(path)
            if step is not None:
                _append(path, step, exit_code, reason or f"exit code {exit_code}")


def _finished_at(path: Path) -> int | None:
    """Return the step at which the run finished according to the records, or None."""
    with _opened(path, os.O_RDONLY) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
        lines = file.read().split(b"\n")
    for line in reversed(lines):
        record = _record(line)
        if record.get("k") in (Kind.STEP, Kind.FINISH) or (record.get("k") == Kind.PROGRESS and record.get("done")):
            says_so = record.get("k") == Kind.PROGRESS or record.get("status") == "finished"
            step = record.get("i")
            return step if says_so and isinstance(step, int) else None
    return None


def _append(path: Path, step: int, exit_code: int, why: str) -> None:
    status = "skipped" if exit_code == _SKIPPED else "failed"
    end = records.Finish(step=step, status=status, why=why)
    record = {"t": round(time.time(), 3), "k": end.kind, **end.encode()}
    with _opened(path, os.O_RDWR | os.O_APPEND) as file:
        torn = file.seek(0, os.SEEK_END) and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n"
        file.write((b"\n" if torn else b"") + json.dumps(record).encode() + b"\n")


def _opened(path: Path, flags: int) -> Any:
    """Open a file safely, even if the job has replaced it by a link or a pipe."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    return os.fdopen(fd, "rb" if flags == os.O_RDONLY else "r+b", buffering=0)


def _record(line: bytes) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        found = json.loads(line)
        return found if isinstance(found, dict) else {}
    return {}
