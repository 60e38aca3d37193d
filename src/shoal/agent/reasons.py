"""Why an attempt's node ended, in one line for people. Pure."""

from __future__ import annotations

import re
import signal
from typing import NamedTuple

from shoal.core.device_promise import REFUSED
from shoal.core.faults import classify

SAME_TIME_S = 1.0
_LENGTH = 500
_FIRST_LENGTH = 240
"""Most of an error's first line, where lines below it say more."""
_BLOCK_LINES = 60
"""Lines of one error message that are read; native stack frames follow after that."""
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
    """The exception of the last traceback, or a last line that looks like an error.

    Of a message with several lines, those that name a known fault are kept too: NCCL says what happened below its first line.
    """
    lines = _lines(stderr)
    blocks = _exceptions(lines)
    own = [block for block in blocks if not _LAUNCHER_ERROR.match(block[0])] or blocks
    if own:
        return _message(own[-1])
    last = _last_line("\n".join(lines))
    return last if _ERROR.search(last) else ""


def _exceptions(lines: list[str]) -> list[list[str]]:
    """The message of each traceback, with the lines below it."""
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
    """The first of the last lines that names a known fault: native code prints its stack below."""
    return next((line.strip() for line in _lines(stderr)[-_BLOCK_LINES:] if classify(line) is not None), "")


def _lines(stderr: str) -> list[str]:
    return [_RANK_PREFIX.sub("", line.rstrip("\r")) for line in stderr.split("\n")]


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
