"""Pure decision after a failed attempt: restart the job, or give up.

A job whose workers were killed from outside (a signal, a lost node) is restarted. A script that ended with an error would
probably fail again, so it is restarted only if the attempt got further than any before it, or if the error comes from a
machine, a device or the network (shoal.core.faults). A script that called exit(1) itself, or that had done its last step,
has decided: progress is no reason to restart it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from shoal.agent.wire import JOIN_REFUSED
from shoal.core.faults import Fault, Remedy, classify, is_before_start, remedy

_EXIT_CODE = re.compile(r"exit code (\d{1,3})\b")


class Cause(StrEnum):
    """Way in which an attempt failed."""

    SIGNAL = "signal"
    LOST = "lost"
    STALLED = "stalled"
    """The attempt made no progress and was ended by the server."""
    ERROR = "error"
    """The script exited with a non-zero code."""
    SETUP = "setup"
    """The environment could not be prepared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    cause: Cause
    reason: str
    progressed: bool
    """True if this attempt got further than any before it."""
    complete: bool = False
    """True if this attempt had done the last of its steps."""
    restarts_used: int
    max_restarts: int
    fails_on_stall: bool = False
    """True if the job asked to fail when it makes no progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    restart: bool
    restarts_used: int
    why: str


def judge(failure: Failure) -> Verdict:
    """Return whether to restart the job, with the new count of restarts and the reason. Progress resets the count."""
    used = 0 if failure.progressed else failure.restarts_used
    if failure.cause in (Cause.SETUP, Cause.LOST) and is_before_start(failure.reason):
        # The job has not run. Its restarts are for failures; here it waits, longer each time (see avoid.py).
        is_disk = classify(failure.reason) is Fault.DISK
        why = "it starts again when the machine has disk space" if is_disk else "it starts again on another device"
        return Verdict(restart=True, restarts_used=used, why=why)
    if failure.cause is Cause.STALLED and failure.fails_on_stall:
        return Verdict(restart=False, restarts_used=used, why="not restarted, because of --on-stall fail")
    if failure.cause is Cause.SETUP:
        is_refusal = failure.reason.startswith(JOIN_REFUSED)
        why = "trying again would not help" if is_refusal else "the environment could not be prepared"
        return Verdict(restart=False, restarts_used=used, why=why)
    if failure.cause is Cause.ERROR and not _is_transient(failure.reason) and (error := _final_error(failure)):
        return Verdict(restart=False, restarts_used=used, why=f"{error}; trying again would not help")
    if used >= failure.max_restarts:
        why = (
            "no restarts allowed"
            if failure.max_restarts == 0
            else f"all {failure.max_restarts} restarts used without progress"
        )
        return Verdict(restart=False, restarts_used=used, why=why)
    return Verdict(restart=True, restarts_used=used + 1, why=f"restart {used + 1} of {failure.max_restarts}")


def _final_error(failure: Failure) -> str:
    """Return why a script's error is final, or an empty string if another attempt may get past it."""
    if not failure.progressed:
        return "the script ended with an error"
    if failure.complete:
        return "the script failed after its last step"
    # The agent gives an exit code as the reason only if there is no exception. Codes from 128 mean a signal: a script that
    # saves on SIGTERM exits with 143.
    chosen = _EXIT_CODE.match(failure.reason)
    return "the script itself exited with an error" if chosen and int(chosen[1]) < 128 else ""


def _is_transient(reason: str) -> bool:
    return remedy(reason) is not Remedy.GIVE_UP
