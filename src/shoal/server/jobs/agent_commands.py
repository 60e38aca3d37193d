"""Commands to the agents of running attempts, repeated until they are answered; and when each attempt last showed progress.

In memory: after a restart of the server open commands are forgotten, and every attempt counts as having just made progress.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from shoal.core.commands import Command
from shoal.core.ids import new_id

_ENOUGH_SIGNS = 60
"""Signs of progress after which the pauses between them tell how long a pause of this attempt usually is."""
_PATIENCE_S = 60.0
"""Seconds after which a command is no longer repeated to agents that have not answered."""


@dataclass(slots=True)
class SentCommand:
    """Command to all nodes of an attempt."""

    id: str
    attempt_id: str
    do: Command
    why: str
    is_stall: bool
    until: float
    is_probe: bool = False
    """True if the answers are only for the server's stall detection and create no event."""
    answered: set[int] = field(default_factory=set)
    """Indexes of the nodes that have answered."""


@dataclass(slots=True)
class _Pace:
    """Number of signs of progress of an attempt, and the longest pause between two of them, in seconds."""

    signs: int = 0
    longest_s: float = 0.0


class AgentCommands:
    """Open commands, and the time of each attempt's last progress."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._open: dict[str, SentCommand] = {}
        self._signs: dict[str, float] = {}
        self._paces: dict[str, _Pace] = {}

    def send(
        self, attempt_id: str, do: Command, why: str = "", *, is_stall: bool = False, is_probe: bool = False
    ) -> str:
        """Send a command to every node of an attempt, in the reply to its next heartbeat; return the command's id."""
        now = self._clock()
        command = SentCommand(new_id("ord"), attempt_id, do, why, is_stall, now + _PATIENCE_S, is_probe)
        with self._lock:
            self._open = {key: known for key, known in self._open.items() if known.until > now}
            self._open[command.id] = command
        return command.id

    def pending(self, attempt_id: str, node: int) -> list[dict[str, Any]]:
        """Return the open commands of a node, for the reply to its heartbeat.

        They are repeated until answered; agents run each once.
        """
        if not self._open:
            return []
        now = self._clock()
        with self._lock:
            return [
                {"id": command.id, "do": command.do} | ({"why": command.why} if command.is_stall else {})
                for command in self._open.values()
                if command.attempt_id == attempt_id and node not in command.answered and command.until > now
            ]

    def answered(self, command_id: str, attempt_id: str, node: int) -> SentCommand | None:
        """Mark a command as answered by a node and return it; None if there is no such open command."""
        with self._lock:
            command = self._open.get(command_id)
            if command is None or command.attempt_id != attempt_id:
                return None
            command.answered.add(node)
            return command

    def record_progress(self, attempt_id: str) -> None:
        """Record that an attempt made progress: a line, a metric or a step arrived."""
        now = self._clock()
        pace = self._paces.setdefault(attempt_id, _Pace())
        pace.signs, pace.longest_s = pace.signs + 1, max(pace.longest_s, now - self._signs.get(attempt_id, now))
        self._signs[attempt_id] = now

    def reset(self, attempt_id: str) -> None:
        """Let the time without progress begin now, as nothing of the attempt runs yet, or not all of it."""
        self._signs[attempt_id] = self._clock()

    def longest_pause_s(self, attempt_id: str) -> float | None:
        """Return the longest time without progress after which the attempt went on; None while too little is known."""
        pace = self._paces.get(attempt_id)
        return pace.longest_s if pace is not None and pace.signs >= _ENOUGH_SIGNS else None

    def excuse(self, attempt_id: str, stalled_s: float) -> None:
        """Do not count a time in which a machine of the attempt stood still as time without progress."""
        if (since := self._signs.get(attempt_id)) is not None:
            self._signs[attempt_id] = min(since + stalled_s, self._clock())

    def quiet_s(self, attempt_id: str) -> float:
        """Return the seconds since an attempt's last progress, or since the first call for it."""
        now = self._clock()
        return now - self._signs.setdefault(attempt_id, now)

    def keep_only(self, attempts: Collection[str]) -> None:
        """Forget all other attempts, which have ended."""
        for attempt_id in [known for known in list(self._signs) if known not in attempts]:
            self._signs.pop(attempt_id, None)
            self._paces.pop(attempt_id, None)
