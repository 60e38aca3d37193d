"""A job's log as a page needs it: its end first, backwards from there, around a place, what matches, all of it as text.

A million lines are never read at once; only `download` goes through all, a segment at a time.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import zstandard
from sqlalchemy import Select, select

from shoal.core.jobs import LogLine
from shoal.core.schema import View
from shoal.server.context import Context
from shoal.server.models.jobs import Segment
from shoal.server.policy import Access
from shoal.server.services import find

_BATCH = 64
_MAX_PLAIN = 16 << 20
_SEARCH_S = 1.5
_ERROR = re.compile(
    rb"Traceback \(most recent call last\)|\b[A-Z]\w*(?:Error|Exception)\b|\bERROR\b|\bFATAL\b|out of memory|Segmentation fault",
)

# A line the pattern takes holds one of these; looking for them is ten times as quick.
_ERROR_WORDS = (b"Traceback (", b"Error", b"Exception", b"ERROR", b"FATAL", b"out of memory", b"Segmentation fault")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    attempt: int | None = None
    node: int | None = None
    rank: int | None = None

    def apply(self, query: Select[Any]) -> Select[tuple[Segment]]:
        if self.attempt is not None:
            query = query.where(Segment.attempt == self.attempt)
        return query if self.node is None else query.where(Segment.node == self.node)

    def takes(self, record: dict[str, Any]) -> bool:
        return self.rank is None or record.get("r") == self.rank


class LogSlice(View):
    lines: list[LogLine]
    first: int
    """Give it back as `before` for what came earlier."""
    cursor: int
    """Give it back as `after`, here or to the API's `follow`, for what comes next."""
    earlier: bool
    later: bool = False


class Hit(View):
    line: LogLine
    at: int
    """Give it to `around`."""


class Hits(View):
    hits: list[Hit]
    cursor: int
    more: bool
    """Not all was searched yet: ask again from `cursor`."""


def tail(ctx: Context, access: Access, job: str, chosen: Filter, *, before: int | None = None,
         wanted: int = 1000) -> LogSlice:  # fmt: skip
    """The last lines, or those before a place."""
    query = _query(ctx, access, job, chosen).order_by(Segment.id.desc()).limit(_BATCH)
    read: list[Segment] = []
    lines, earlier, upper = 0, True, before
    while lines < wanted and earlier:
        batch = _load(ctx, query if upper is None else query.where(Segment.id < upper))
        earlier = len(batch) == _BATCH
        for segment in batch:
            read.append(segment)
            upper = segment.id
            lines += segment.count
            if lines >= wanted:
                earlier = earlier or segment is not batch[-1]
                break
    return _slice(read, chosen, earlier=earlier, cursor=before or 0)


def around(ctx: Context, access: Access, job: str, chosen: Filter, at: int) -> LogSlice:
    """The segment a hit is in, with some before and after."""
    query = _query(ctx, access, job, chosen)
    before = _load(ctx, query.where(Segment.id < at).order_by(Segment.id.desc()).limit(3))
    after = _load(ctx, query.where(Segment.id >= at).order_by(Segment.id).limit(9))
    found = _slice([*before[:2], *after[:8]], chosen, earlier=len(before) == 3, cursor=at)
    return found.model_copy(update={"later": len(after) == 9})


def following(ctx: Context, access: Access, job: str, chosen: Filter, after: int) -> LogSlice:
    """What comes after a place that is not the end."""
    batch = _load(ctx, _query(ctx, access, job, chosen).where(Segment.id > after).order_by(Segment.id).limit(9))
    found = _slice(batch[:8], chosen, earlier=True, cursor=after)
    return found.model_copy(update={"later": len(batch) == 9})


def search(ctx: Context, access: Access, job: str, chosen: Filter, text: str, *, after: int = 0,
           limit: int = 200) -> Hits:  # fmt: skip
    """Lines that hold the text, in any case; as far as one looks within a second or two."""
    needle = text.casefold()
    # Text that JSON writes as it is can be looked for in the packed segment, which is far quicker.
    raw = needle.encode() if text.isascii() and text.isprintable() and not set(text) & set('"\\') else None
    return _scan(
        ctx, _query(ctx, access, job, chosen), chosen, after, limit,
        may_hold=lambda plain: raw is None or raw in plain.lower(),
        holds=lambda line: needle in line.casefold(),
    )  # fmt: skip


def first_error(ctx: Context, access: Access, job: str, chosen: Filter, *, after: int = 0) -> Hits:
    return _scan(
        ctx, _query(ctx, access, job, chosen), chosen, after, 1,
        may_hold=lambda plain: any(word in plain for word in _ERROR_WORDS),
        holds=lambda line: _ERROR.search(line.encode()) is not None,
    )  # fmt: skip


def download(ctx: Context, access: Access, job: str, chosen: Filter) -> tuple[str, Iterator[bytes]]:
    """(the job's name, its log as text)."""
    with ctx.db.read() as session:
        name = find.job(session, access, job).name
    query = _query(ctx, access, job, chosen).order_by(Segment.id).limit(_BATCH)

    def pieces() -> Iterator[bytes]:
        after = 0
        while batch := _load(ctx, query.where(Segment.id > after)):
            after = batch[-1].id
            for segment in batch:
                lines = (_line(segment, r) for r in _records(_plain(segment)) if chosen.takes(r))
                yield "".join(_as_text(line) for line in lines).encode("utf-8", "replace")

    return name, pieces()


def _query(ctx: Context, access: Access, job: str, chosen: Filter) -> Select[Any]:
    with ctx.db.read() as session:
        job_id = find.job(session, access, job).id
    return chosen.apply(select(Segment).where(Segment.job_id == job_id, Segment.stream == "log"))


def _load(ctx: Context, query: Select[Any]) -> list[Segment]:
    with ctx.db.read() as session:
        return list(session.scalars(query))


def _slice(segments: list[Segment], chosen: Filter, *, earlier: bool, cursor: int) -> LogSlice:
    lines = [_line(s, r) for s in segments for r in _records(_plain(s)) if chosen.takes(r)]
    lines.sort(key=lambda line: (line.attempt, line.at))
    ids = [segment.id for segment in segments]
    return LogSlice(
        lines=lines, first=min(ids, default=cursor), cursor=max(ids, default=cursor), earlier=earlier and bool(ids)
    )


def _scan(ctx: Context, query: Select[Any], chosen: Filter, after: int, limit: int, *,
          may_hold: Callable[[bytes], bool], holds: Callable[[str], bool]) -> Hits:  # fmt: skip
    hits: list[Hit] = []
    query, until = query.order_by(Segment.id).limit(_BATCH), time.monotonic() + _SEARCH_S
    while batch := _load(ctx, query.where(Segment.id > after)):
        for segment in batch:
            plain = _plain(segment)
            if may_hold(plain):
                hits += [
                    Hit(line=_line(segment, r), at=segment.id)
                    for r in _records(plain)
                    if chosen.takes(r) and holds(str(r.get("m", "")))
                ]
            after = segment.id
            if len(hits) >= limit or time.monotonic() > until:
                return Hits(hits=hits[:limit], cursor=after, more=True)
    return Hits(hits=hits, cursor=after, more=False)


def _plain(segment: Segment) -> bytes:
    with zstandard.ZstdDecompressor().stream_reader(segment.body) as reader:
        return reader.read(_MAX_PLAIN)


def _records(plain: bytes) -> Iterable[dict[str, Any]]:
    return (json.loads(line) for line in plain.splitlines() if line)


def _line(segment: Segment, record: dict[str, Any]) -> LogLine:
    return LogLine(
        at=record["t"],
        attempt=segment.attempt,
        node=segment.node,
        rank=record.get("r"),
        stream=record.get("e", "out"),
        text=str(record.get("m", "")),
    )


def _as_text(line: LogLine) -> str:
    at = datetime.fromtimestamp(line.at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
    who = "shoal" if line.rank is None else f"rank {line.rank}"
    return f"{at}Z [{line.attempt}.{line.node} {who}] {line.text}\n"
