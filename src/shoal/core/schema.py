"""Base classes of all wire schemas: requests with unknown fields are refused, times are UTC."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer

LEAST_INT, MOST_INT = -(2**63), 2**63 - 1
"""Smallest and largest integer a database column can hold."""
Int64 = Annotated[int, Field(ge=LEAST_INT, le=MOST_INT)]
Count64 = Annotated[int, Field(ge=0, le=MOST_INT)]
MOST_TIME_S = 253_402_300_800.0
"""Unix time from which on no date can express a time: the year 10000."""


class Schema(BaseModel):
    """Request to the server. Unknown fields are an error."""

    model_config = ConfigDict(extra="forbid")


class View(BaseModel):
    """Answer of the server. Clients ignore fields they do not know, so that the server can be newer than the client."""

    model_config = ConfigDict(extra="ignore")


def _as_utc(value: datetime) -> datetime:
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


Utc = Annotated[
    datetime,
    AfterValidator(_as_utc),
    PlainSerializer(lambda v: v.isoformat(timespec="milliseconds").replace("+00:00", "Z"), return_type=str),
]


def valid_text(text: str) -> str:
    """Return the text with a question mark for each lone surrogate, which JSON can express and no answer can contain."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def utcnow() -> datetime:
    """Return the present time: in a server its own steady clock, which no change of the system clock moves."""
    return datetime.now(UTC) if _now_s is None else datetime.fromtimestamp(_now_s(), UTC)


def wall_utcnow() -> datetime:
    """Return the time of the system clock, for what other machines compare with theirs."""
    return datetime.now(UTC)


_now_s: Callable[[], float] | None = None


@contextmanager
def timed_by(now_s: Callable[[], float]) -> Iterator[None]:
    """Make `utcnow` of this process use another clock, given as a function that returns seconds since 1970."""
    global _now_s
    before, _now_s = _now_s, now_s
    try:
        yield
    finally:
        _now_s = before
