"""Pauses of a request that the server cannot serve now, because its database is busy or its disk is full or fails.

Such an answer is not final: the request is sent again until it succeeds or the client's patience ends.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Mapping

from shoal.core.errors import Busy, InvalidSpec, ShoalError, StorageFailing, StorageFull

logger = logging.getLogger(__name__)

PATIENCE_S = 600.0
_PAUSES_S = (1.0, 10.0)
"""First and longest pause between two tries."""
_LONGEST_RETRY_AFTER_S = 30.0
_SILENT_S = 5.0
"""Seconds of a busy database before the wait is reported. A sick disk is reported at once: a person may have to act."""


def patience_s() -> float:
    """Return how long a request may wait for a sick server (`SHOAL_PATIENCE_S`)."""
    given = os.environ.get("SHOAL_PATIENCE_S", "")
    try:
        return max(0.0, float(given)) if given else PATIENCE_S
    except ValueError:
        raise InvalidSpec(f"SHOAL_PATIENCE_S: {given!r} is not a number of seconds.") from None


def is_sick(error: ShoalError, *, repeatable: bool) -> bool:
    """True if the request may be sent again and the server's database or disk is the reason that it was not served.

    A request that changes something is sent again only if the server says that nothing was changed.
    """
    if isinstance(error, Busy):
        return True
    return isinstance(error, StorageFailing | StorageFull) and (repeatable or bool(error.details.get("unchanged")))


class SickServerWait:
    """The pauses of one request. `next_pause_s` returns None when the patience has ended."""

    def __init__(self, patience_s: float, say: Callable[[str], None]):
        self._left_s, self._say = patience_s, say
        self._pause_s, self._waited_s = _PAUSES_S[0], 0.0
        self._said = ""

    def next_pause_s(self, error: ShoalError, headers: Mapping[str, str]) -> float | None:
        """Return the seconds to wait before the next try: longer each time, and at least what the server asked for."""
        if self._left_s <= 0:
            return None
        pause_s = max(self._pause_s, _retry_after_s(headers)) * random.uniform(0.75, 1.25)  # noqa: S311
        pause_s = min(pause_s, self._left_s)
        self._pause_s = min(self._pause_s * 1.5, _PAUSES_S[1])
        self._left_s -= pause_s
        self._waited_s += pause_s
        self._report(error)
        return pause_s

    def _report(self, error: ShoalError) -> None:
        if error.message == self._said or (isinstance(error, Busy) and self._waited_s < _SILENT_S):
            return
        self._said = error.message
        hint = f" ({error.hint})" if error.hint else ""
        self._say(f"{error.message}{hint} Trying again for {self._left_s / 60:.0f} min; Ctrl-C gives up.")


def _retry_after_s(headers: Mapping[str, str]) -> float:
    """Return the seconds of a Retry-After header; 0 without one or with a date."""
    try:
        return min(max(0.0, float(headers.get("Retry-After", "0"))), _LONGEST_RETRY_AFTER_S)
    except ValueError:
        return 0.0
