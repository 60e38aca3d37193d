"""The end of a run as its parent process saw it, put into the records of the SDK where those say otherwise.

The SDK writes its last record before the process has ended, and cannot see every way in which a script fails: a
SystemExit that is raised by hand, an error in an exit handler, a crash while the interpreter is taken down.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

_TAIL = 256 << 10
_SKIPPED = 77
"""shoal.sdk.trial.SKIPPED, which the agent must not import."""


def correct_end(folder: Path, exit_code: int, reason: str | None = None) -> None:
    """Append a record of the failure to each rank's records in `folder` whose last word is that the run has finished.

    Called when no worker is left, with the exit code of the one that failed, and why. It goes through the same file as all
    other records, so the server, `shoal sync` and a search read it without knowing who wrote it.
    """
    if exit_code == 0:
        return
    for path in sorted(folder.glob("rank-*.jsonl")):
        with suppress(OSError):
            step = _finished_at(path)
            if step is not None:
                _append(path, step, exit_code, reason or f"exit code {exit_code}")


def _finished_at(path: Path) -> int | None:
    """Return the step at which the records say that the run has finished; None if they do not."""
    with _opened(path, os.O_RDONLY) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
        lines = file.read().split(b"\n")
    for line in reversed(lines):
        record = _record(line)
        if record.get("k") in ("s", "f") or (record.get("k") == "p" and record.get("done")):
            says_so = record.get("k") == "p" or record.get("status") == "finished"
            step = record.get("i")
            return step if says_so and isinstance(step, int) else None
    return None


def _append(path: Path, step: int, exit_code: int, why: str) -> None:
    status = "skipped" if exit_code == _SKIPPED else "failed"
    record = {"t": round(time.time(), 3), "k": "f", "i": step, "status": status, "why": why}
    with _opened(path, os.O_RDWR | os.O_APPEND) as file:
        torn = file.seek(0, os.SEEK_END) and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n"
        file.write((b"\n" if torn else b"") + json.dumps(record).encode() + b"\n")


def _opened(path: Path, flags: int) -> Any:
    """Open a file that the job may have replaced by a link or a pipe."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    return os.fdopen(fd, "rb" if flags == os.O_RDONLY else "r+b", buffering=0)


def _record(line: bytes) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        found = json.loads(line)
        return found if isinstance(found, dict) else {}
    return {}
