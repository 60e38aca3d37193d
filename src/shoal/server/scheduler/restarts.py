"""After a failure: start again, or give up? A pure decision on what is known.

What killed the workers from outside (a signal, a lost node) is worth another try. A script that ends with an
error by itself would do so again, unless it had got further than ever before, or the error is one of the machines,
their devices or their network (shoal.core.faults).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from shoal.agent.wire import JOIN_REFUSED
from shoal.core.faults import classify


class Cause(StrEnum):
    SIGNAL = "signal"
    LOST = "lost"
    STALLED = "stalled"
    """It ran without getting anywhere, and was ended by the server."""
    ERROR = "error"
    """The script ended with a non-zero code by itself."""
    SETUP = "setup"
    """The environment could not be prepared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    cause: Cause
    reason: str
    progressed: bool
    """This attempt got further than any before it."""
    restarts_used: int
    max_restarts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    restart: bool
    restarts_used: int
    why: str


def judge(failure: Failure) -> Verdict:
    used = 0 if failure.progressed else failure.restarts_used
    if failure.cause is Cause.SETUP:
        is_refusal = failure.reason.startswith(JOIN_REFUSED)
        why = "trying again would not help" if is_refusal else "the environment could not be prepared"
        return Verdict(restart=False, restarts_used=used, why=why)
    if failure.cause is Cause.ERROR and not failure.progressed and not _is_transient(failure.reason):
        return Verdict(
            restart=False, restarts_used=used, why="the script ended with an error; trying again would not help"
        )
    if used >= failure.max_restarts:
        why = (
            "no restarts allowed"
            if failure.max_restarts == 0
            else f"all {failure.max_restarts} restarts used without getting further"
        )
        return Verdict(restart=False, restarts_used=used, why=why)
    return Verdict(restart=True, restarts_used=used + 1, why=f"restart {used + 1} of {failure.max_restarts}")


def _is_transient(reason: str) -> bool:
    fault = classify(reason)
    return fault is not None and fault.is_infrastructure
