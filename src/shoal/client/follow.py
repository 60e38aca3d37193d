"""Following a job live, across cut connections and server restarts: no line lost, none doubled."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from shoal.client._http import Http
from shoal.client._httpx import httpx
from shoal.client._sse import ServerEvent, SseParser
from shoal.core.errors import Internal, ShoalError, Unreachable
from shoal.core.jobs import JobSummary, LogLine, LogPage

SILENCE_S = 45.0
"""The server pings more often than this; a longer silence means the connection is dead."""
PATIENCE_S = 600.0
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 3.0


@dataclass(frozen=True, slots=True)
class Lines:
    """New log lines."""

    lines: list[LogLine]


@dataclass(frozen=True, slots=True)
class Changed:
    """The job's state, progress or outcome changed (or this is the first word of it)."""

    job: JobSummary


@dataclass(frozen=True, slots=True)
class Lost:
    """The server cannot be heard; the job goes on, and so do the tries."""

    error: ShoalError


@dataclass(frozen=True, slots=True)
class Back:
    """The server is heard again."""


@dataclass(frozen=True, slots=True)
class NewMetrics:
    """Metrics came in, up to this cursor."""

    cursor: int


FollowEvent = Lines | Changed | Lost | Back | NewMetrics


class Follower:
    """Iterate once. Ends after the job has ended and all its lines have come; raises if the job is gone or
    the server stays away longer than `patience_s`."""

    def __init__(
        self,
        http: Http,
        path: str,
        params: dict[str, Any],
        *,
        after: int = 0,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._http, self._path, self._params = http, path, params
        self._patience_s, self._clock = patience_s, clock
        self.cursor = after
        """The last line handed out; the next connection starts behind it."""
        self._ended = False

    def __iter__(self) -> Iterator[FollowEvent]:
        pause_s, lost_at = FIRST_PAUSE_S, None
        while not self._ended:
            try:
                for event in self._connection():
                    if lost_at is not None:
                        pause_s, lost_at = FIRST_PAUSE_S, None
                        yield Back()
                    if event is not None:
                        yield event
                problem: Exception = ConnectionResetError("closed without an end")
            except (httpx.TransportError, Unreachable) as error:
                problem = error
            if self._ended:
                return
            # The first cut is often a restart, over in a moment: not worth a word yet.
            lost = problem if isinstance(problem, ShoalError) else self._http.unreachable(problem)
            if lost_at is None:
                lost_at = self._clock()
                yield Lost(lost)
            if self._clock() - lost_at > self._patience_s:
                raise lost
            self._http.sleep(pause_s)
            self._http.relocate()
            pause_s = min(pause_s * 1.7, LONGEST_PAUSE_S)

    def _connection(self) -> Iterator[FollowEvent | None]:
        """The events of one connection. The first thing out, None, says that the server is there."""
        parser = SseParser()
        with self._http.stream(self._path, {**self._params, "after": self.cursor}, silence_s=SILENCE_S) as chunks:
            yield None
            for chunk in chunks:
                for event in parser.feed(chunk):
                    if event.kind == "end":
                        self._ended = True
                        return
                    if (found := self._understand(event)) is not None:
                        yield found

    def _understand(self, event: ServerEvent) -> FollowEvent | None:
        try:
            if event.kind == "log":
                return self._take_page(LogPage.model_validate_json(event.data))
            if event.kind == "job":
                return Changed(JobSummary.model_validate_json(event.data))
            if event.kind == "metrics":
                return NewMetrics(int(json.loads(event.data)["cursor"]))
        except ValidationError as error:
            raise Internal("The server's answer was not understood.", hint="Compare versions: shoal version") from error
        return None

    def _take_page(self, page: LogPage) -> Lines | None:
        if page.cursor <= self.cursor:
            return None  # seen already
        self.cursor = page.cursor
        return Lines(page.lines) if page.lines else None
