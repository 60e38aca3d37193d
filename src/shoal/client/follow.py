"""Follow a job live, across broken connections and server restarts: no line is lost or repeated."""

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
    """The state, progress or result of the job has changed. Also sent once at the beginning."""

    job: JobSummary


@dataclass(frozen=True, slots=True)
class Lost:
    """The connection to the server is lost. The job continues, and so do the attempts to reconnect."""

    error: ShoalError


@dataclass(frozen=True, slots=True)
class Back:
    """The server answers again."""


@dataclass(frozen=True, slots=True)
class NewMetrics:
    """New metrics are available, up to this cursor."""

    cursor: int


FollowEvent = Lines | Changed | Lost | Back | NewMetrics


class Follower:
    """Iterator over the events of a job. Iterate only once.

    It ends after the job has ended and all its lines were returned. It raises an error if the job was deleted, or if the server
    does not answer for longer than `patience_s`.
    """

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
        """Position after the last returned line. The next connection starts there."""
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
            # Nothing is raised yet: the server is often only restarting.
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
        """Yield the events of one connection. The first one, None, means that the server has answered."""
        parser = SseParser()
        with self._http.stream(self._path, {**self._params, "after": self.cursor}, silence_s=SILENCE_S) as chunks:
            yield None
            for chunk in chunks:
                for event in parser.feed(chunk):
                    if event.kind == "end":
                        self._ended = True
                        return
                    if (found := self._parse(event)) is not None:
                        yield found

    def _parse(self, event: ServerEvent) -> FollowEvent | None:
        try:
            if event.kind == "log":
                return self._new_lines(LogPage.model_validate_json(event.data))
            if event.kind == "job":
                return Changed(JobSummary.model_validate_json(event.data))
            if event.kind == "metrics":
                return NewMetrics(int(json.loads(event.data)["cursor"]))
        except ValidationError as error:
            raise Internal(
                "The answer of the server is not valid.",
                hint="Client and server may have different versions: shoal version",
            ) from error
        return None

    def _new_lines(self, page: LogPage) -> Lines | None:
        if page.cursor <= self.cursor:
            return None  # seen already
        self.cursor = page.cursor
        return Lines(page.lines) if page.lines else None
