"""Why an attempt's node ended, in one line for people. Pure."""

from __future__ import annotations

import re
import signal
from typing import NamedTuple

from shoal.core.device_promise import REFUSED

SAME_TIME_S = 1.0
_LENGTH = 500
_RANK_PREFIX = re.compile(r"^\[rank\d+\]:\s?")
_TRACEBACK = "Traceback (most recent call last)"
_ERROR = re.compile(r"\b\w*(?:Error|Exception|KeyboardInterrupt)\b|\berror:|^cannot run ")
_TORCHRUN = re.compile(r"rank\s*:\s*(\d+) \(local_rank: \d+\)\s+exitcode\s*:\s*(-?\d+)")
_MEANING = {
    signal.SIGKILL: " (out of memory?)",
    signal.SIGSEGV: " (a crash in native code)",
    signal.SIGBUS: " (no room left in /dev/shm?)",
    signal.SIGILL: " (an instruction this CPU lacks)",
}


class Exit(NamedTuple):
    local: int
    """Local rank."""
    code: int
    """Negative for a signal."""
    at: float
    """Monotonic."""


def first_failure(exits: list[Exit], termed_at: float | None = None, killed_at: float | None = None) -> Exit | None:
    """The worker to blame: the first to fail, but a death by a signal not ours outranks an exit just before it.

    A killed worker takes its peers down with errors of their own, which may be seen first.
    """
    failed = sorted((e for e in exits if e.code != 0 and not _ours(e, termed_at, killed_at)), key=lambda e: e.at)
    if not failed:
        return None
    near = [e for e in failed if e.at - failed[0].at <= SAME_TIME_S]
    return next((e for e in near if e.code < 0), failed[0])


def _ours(exit_: Exit, termed_at: float | None, killed_at: float | None) -> bool:
    """It died of the signal we had sent."""
    sent = {-signal.SIGTERM: termed_at, -signal.SIGKILL: killed_at}.get(exit_.code)
    return sent is not None and exit_.at >= sent


def explain(code: int, stderr: str, stdout: str = "") -> str:
    """The exception that ended it, the signal, or its exit code and what it said last."""
    error, last = last_error(stderr), _last_line(stderr)
    if code < 0 or code in (128 + signal.SIGKILL, 128 + signal.SIGSEGV):
        number = -code if code < 0 else code - 128
        return _signal(number) + (f": {last}" if number == signal.SIGABRT and last else "")
    if error := refusal(stderr) or error:
        return error
    last = last or _last_line(stdout)
    return f"exit code {code}" + (f": {last}" if last else "")


def refusal(text: str) -> str:
    """Return why a worker would not train on the device it found, or an empty string."""
    lines = (_RANK_PREFIX.sub("", line) for line in text.splitlines())
    return next((_short(line.removeprefix(REFUSED)) for line in lines if line.startswith(REFUSED)), "")


def last_error(stderr: str) -> str:
    """The exception of the last traceback, or a last line that looks like an error."""
    lines = [_RANK_PREFIX.sub("", line.rstrip("\r")) for line in stderr.split("\n")]
    starts = [i for i, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    for at in range(starts[-1] + 1, len(lines)) if starts else ():
        line = lines[at]
        if line and not line[0].isspace():
            more = next((m.strip() for m in lines[at + 1 :] if m.strip()), "") if line.endswith(":") else ""
            return _short(f"{line} {more}".strip())
    last = _last_line("\n".join(lines))
    return last if _ERROR.search(last) else ""


def from_torchrun(stderr: str) -> tuple[int, int] | None:
    """(rank, exit code) of the root cause torchrun names in its summary."""
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
