"""One-line explanations of why a node ended. Pure functions, apart from `not_started`, which looks at the disk."""

from __future__ import annotations

import re
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from shoal.core.device_check import REFUSED
from shoal.core.faults import FULL_DISK, LEAST_FREE, classify

SAME_TIME_S = 1.0
_LENGTH = 500
_FIRST_LENGTH = 240
"""Longest first line of an error message when lines below it are shown too."""
_BLOCK_LINES = 60
"""Number of lines read of one error message; what follows are native stack frames."""
_LAUNCHER_ERROR = re.compile(r"^(?:\S*\.)?(?:ChildFailedError|CalledProcessError)\b")
"""A launcher's exception only repeats that one of its workers failed."""
_RANK_PREFIX = re.compile(r"^\[rank\d+\]:\s?")
_TRACEBACK = "Traceback (most recent call last)"
_ERROR = re.compile(r"\b\w*(?:Error|Exception|KeyboardInterrupt)\b|\berror:|^cannot run ")
_TORCHRUN = re.compile(r"rank\s*:\s*(\d+) \(local_rank: \d+\)\s+exitcode\s*:\s*(-?\d+)")
_MEANING = {
    signal.SIGKILL: " (out of memory?)",
    signal.SIGSEGV: " (a crash in native code)",
    signal.SIGBUS: " (no room left in /dev/shm?)",
    signal.SIGILL: " (an instruction this CPU does not support)",
}


class Exit(NamedTuple):
    """The exit of one worker."""

    local: int
    """Local rank."""
    code: int
    """Exit code; negative for a signal."""
    at: float
    """Time of the exit on the monotonic clock."""


def not_started(reason: str, folder: Path) -> str:
    """Return the reason why a node could not start, marked as the machine's fault if the disk of its folder is full now."""
    with suppress(OSError):
        if (free := shutil.disk_usage(folder).free) < LEAST_FREE:
            return f"{FULL_DISK} ({free >> 20} MiB free): {reason}"
    return reason


def first_failure(exits: list[Exit], termed_at: float | None = None, killed_at: float | None = None) -> Exit | None:
    """Return the exit that caused the failure, or None: the first to fail, unless a foreign signal killed another just after.

    When a worker is killed, its peers fail with errors of their own, and their exits may be noticed first. So within
    SAME_TIME_S a death by a signal that we did not send takes precedence.
    """
    failed = sorted((e for e in exits if e.code != 0 and not _ours(e, termed_at, killed_at)), key=lambda e: e.at)
    if not failed:
        return None
    near = [e for e in failed if e.at - failed[0].at <= SAME_TIME_S]
    return next((e for e in near if e.code < 0), failed[0])


def _ours(exit_: Exit, termed_at: float | None, killed_at: float | None) -> bool:
    """Return whether the worker died of a signal that we had sent."""
    sent = {-signal.SIGTERM: termed_at, -signal.SIGKILL: killed_at}.get(exit_.code)
    return sent is not None and exit_.at >= sent


def explain(code: int, stderr: str, stdout: str = "") -> str:
    """Return why a process ended: its exception, its signal, or its exit code with the last line it printed."""
    if code < 0 or code in (128 + signal.SIGKILL, 128 + signal.SIGSEGV):
        number = -code if code < 0 else code - 128
        if number != signal.SIGABRT:
            return _signal(number)
        words = _known_fault(stderr) or _last_line(stderr)
        return _short(_signal(number) + (f": {words}" if words else ""))
    if error := refusal(stderr) or last_error(stderr):
        return error
    last = _known_fault(stderr) or _last_line(stderr) or _last_line(stdout)
    return _short(f"exit code {code}" + (f": {last}" if last else ""))


def refusal(text: str) -> str:
    """Return why a worker would not train on the device it found, or an empty string."""
    lines = (_RANK_PREFIX.sub("", line) for line in text.splitlines())
    return next((_short(line.removeprefix(REFUSED)) for line in lines if line.startswith(REFUSED)), "")


def last_error(stderr: str) -> str:
    """Return the exception of the last traceback, or the last line if it looks like an error, or an empty string.

    Lines of a longer message that name a known fault are included: NCCL says what happened below its first line.
    """
    lines = _lines(stderr)
    blocks = _exceptions(lines)
    own = [block for block in blocks if not _LAUNCHER_ERROR.match(block[0])] or blocks
    if own:
        return _message(own[-1])
    last = _last_line("\n".join(lines))
    return last if _ERROR.search(last) else ""


def _exceptions(lines: list[str]) -> list[list[str]]:
    """Return the message of each traceback with the lines below it."""
    starts = [i for i, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    blocks = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=False):
        at = next((i for i in range(start + 1, end) if lines[i] and not lines[i][0].isspace()), None)
        if at is not None:
            blocks.append(lines[at : min(end, at + _BLOCK_LINES)])
    return blocks


def _message(block: list[str]) -> str:
    first, below = block[0], [line.strip() for line in block[1:] if line.strip()]
    more = below[:1] if first.endswith(":") else []
    more += [line for line in below if line not in more and classify(line) is not None][:3]
    if more and len(first) > _FIRST_LENGTH:
        first = first[: _FIRST_LENGTH - 1] + "…"
    return _short(" ".join([first, *more]))


def _known_fault(stderr: str) -> str:
    """Return the first of the last lines that names a known fault, or ''. Native code prints its stack below that line."""
    return next((line.strip() for line in _lines(stderr)[-_BLOCK_LINES:] if classify(line) is not None), "")


def _lines(stderr: str) -> list[str]:
    return [_RANK_PREFIX.sub("", line.rstrip("\r")) for line in stderr.split("\n")]


def from_torchrun(stderr: str) -> tuple[int, int] | None:
    """Return rank and exit code of the root cause in torchrun's failure summary, or None without one."""
    _, mark, summary = stderr.rpartition("Root Cause (first observed failure)")
    found = _TORCHRUN.search(summary) if mark else None
    return (int(found[1]), int(found[2])) if found else None


def _signal(number: int) -> str:
    try:
        known = signal.Signals(number)
    except ValueError:
        return f"killed by signal {number}"
    return f"killed by {known.name}{_MEANING.get(known, '')}"


def _last_line(text: str) -> str:
    return _short(next((line.strip() for line in reversed(re.split(r"[\r\n]", text)) if line.strip()), ""))


def _short(line: str) -> str:
    return line if len(line) <= _LENGTH else line[: _LENGTH - 1] + "…"
