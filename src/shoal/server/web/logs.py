"""A job's log as a page needs it: its end first, backwards from there, around a place, all of it as text.

A place is a line's: its segment and its number therein, in one integer that browsers can hold. A million lines are never
read at once; only `download` goes through all, a segment at a time. Search is in `log_search`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import zstandard
from sqlalchemy import Row, Select, select

from shoal.core.jobs import LogLine
from shoal.core.schema import View
from shoal.server.context import Context
from shoal.server.models.jobs import Segment
from shoal.server.policy import Access
from shoal.server.services import find
from shoal.server.services.streams import bounded, in_order, log_line

LINE_BITS = 21
"""A segment unpacks to 16 MiB at most, and no record has less than eight bytes. logs.js knows this number, too."""
_FEW, _BATCH = 8, 64
_MOST_READ = 30_000
"""Records looked at for one answer, however few a filter takes."""
_MAX_PLAIN = 16 << 20
_PIECE = 1000

_COLUMNS: list[Any] = [Segment.id, Segment.attempt, Segment.node, Segment.body]

Stored = Row[Any]
"""A segment's `_COLUMNS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    attempt: int | None = None
    node: int | None = None
    rank: int | None = None

    def apply(self, query: Select[Any]) -> Select[Any]:
        if self.attempt is not None:
            query = query.where(Segment.attempt == self.attempt)
        return query if self.node is None else query.where(Segment.node == self.node)

    def takes(self, record: dict[str, Any]) -> bool:
        return self.rank is None or record.get("r") == self.rank


class LogSlice(View):
    lines: list[LogLine]
    first: int
    """Give it back as `before` for what came earlier."""
    next: int
    """Give it back as `after` for what comes next."""
    cursor: int
    """Give it to the API's `follow` for what is yet to come."""
    earlier: bool
    later: bool = False


def tail(ctx: Context, access: Access, job: str, chosen: Filter, *, before: int | None = None,
         wanted: int = 1000) -> LogSlice:  # fmt: skip
    """The last lines, or those before a place."""
    return _backwards(ctx, query(ctx, access, job, chosen), chosen, before, wanted)


def around(ctx: Context, access: Access, job: str, chosen: Filter, at: int) -> LogSlice:
    """A line with some before and after it."""
    found = query(ctx, access, job, chosen)
    head, rest = _backwards(ctx, found, chosen, at, 300), _forwards(ctx, found, chosen, at, 700)
    return rest.model_copy(
        update={"lines": in_order([*head.lines, *rest.lines]), "first": head.first, "earlier": head.earlier}
    )


def following(ctx: Context, access: Access, job: str, chosen: Filter, after: int) -> LogSlice:
    """What stands at a place, and what comes after it."""
    return _forwards(ctx, query(ctx, access, job, chosen), chosen, after, 1000)


def download(ctx: Context, access: Access, job: str, chosen: Filter) -> tuple[str, Iterator[bytes]]:
    """(the job's name, its log as text)."""
    with ctx.db.read() as session:
        name = find.job(session, access, job).name
    some = query(ctx, access, job, chosen).order_by(Segment.id).limit(_FEW)

    def pieces() -> Iterator[bytes]:
        after = 0
        while batch := load(ctx, some.where(Segment.id > after)):
            after = batch[-1].id
            for segment in batch:
                lines = plain(segment.body).splitlines()
                for start in range(0, len(lines), _PIECE):
                    records = [json.loads(line) for line in lines[start : start + _PIECE] if line]
                    texts = [_as_text(segment, record) for record in records if chosen.takes(record)]
                    yield "".join(texts).encode("utf-8", "replace")

    return name, pieces()


def place(segment: int, line: int) -> int:
    return segment << LINE_BITS | line


def at(where: int) -> tuple[int, int]:
    """(segment, line) of a place."""
    return where >> LINE_BITS, where & ((1 << LINE_BITS) - 1)


def query(ctx: Context, access: Access, job: str, chosen: Filter) -> Select[Any]:
    with ctx.db.read() as session:
        job_id = find.job(session, access, job).id
    columns: Select[Any] = select(*_COLUMNS)
    return chosen.apply(columns.where(Segment.job_id == job_id, Segment.stream == "log"))


def load(ctx: Context, query: Select[Any]) -> Sequence[Stored]:
    with ctx.db.read() as session:
        return session.execute(query).all()


def plain(body: bytes, unpack: zstandard.ZstdDecompressor | None = None) -> bytes:
    """A segment's records. Agents tell how much there is, which spares a buffer for the most there could be."""
    size = zstandard.frame_content_size(body)
    if 0 <= size <= _MAX_PLAIN:
        return (unpack or zstandard.ZstdDecompressor()).decompress(body)
    return bounded(body)


@dataclass(slots=True)
class _Reader:
    """Takes lines of segments until it has enough, or has looked at enough."""

    chosen: Filter
    wanted: int
    lines: list[LogLine] = field(default_factory=list)
    read: int = 0

    def take(self, segment: Stored, records: list[bytes], numbers: range) -> int | None:
        """The number of the line at which it had enough, if it had."""
        for number in numbers:
            self.read += 1
            if records[number]:
                record = json.loads(records[number])
                if self.chosen.takes(record):
                    self.lines.append(log_line(segment.attempt, segment.node, record))
            if len(self.lines) >= self.wanted or self.read >= _MOST_READ:
                return number
        return None


def _backwards(ctx: Context, query: Select[Any], chosen: Filter, before: int | None, wanted: int) -> LogSlice:
    reader, upper, size = _Reader(chosen, wanted), before, _FEW
    first, cursor = before or 0, None
    while True:
        some = query.order_by(Segment.id.desc()).limit(size)
        last, end = at(upper) if upper is not None else (0, 0)
        batch = load(ctx, some if upper is None else some.where(Segment.id < last + bool(end)))
        for index, segment in enumerate(batch):
            cursor = segment.id if cursor is None else cursor
            records = plain(segment.body).splitlines()
            until = min(end, len(records)) if upper is not None and segment.id == last else len(records)
            stopped = reader.take(segment, records, range(until - 1, -1, -1))
            first = place(segment.id, stopped or 0)
            if stopped is not None:
                earlier = stopped > 0 or index + 1 < len(batch) or len(batch) == size
                return _slice(reader.lines[::-1], first, before or place(cursor + 1, 0), cursor, earlier=earlier)
        if len(batch) < size:
            cursor = cursor or 0
            return _slice(reader.lines[::-1], first, before or place(cursor + 1, 0), cursor, earlier=False)
        upper, size = place(batch[-1].id, 0), _BATCH


def _forwards(ctx: Context, query: Select[Any], chosen: Filter, after: int, wanted: int) -> LogSlice:
    reader, lower, size = _Reader(chosen, wanted), after, _FEW
    cursor = at(after)[0]
    while True:
        from_id, start = at(lower)
        batch = load(ctx, query.where(Segment.id >= from_id).order_by(Segment.id).limit(size))
        for index, segment in enumerate(batch):
            cursor, records = segment.id, plain(segment.body).splitlines()
            begin = start if segment.id == from_id else 0
            stopped = reader.take(segment, records, range(begin, len(records)))
            if stopped is not None:
                later = stopped + 1 < len(records) or index + 1 < len(batch) or len(batch) == size
                return _slice(reader.lines, after, place(segment.id, stopped + 1), cursor, earlier=True, later=later)
        lower, is_last, size = place(cursor + 1, 0), len(batch) < size, _BATCH
        if is_last:
            return _slice(reader.lines, after, lower, cursor, earlier=True)


def _slice(
    stored: list[LogLine], first: int, next_: int, cursor: int, *, earlier: bool, later: bool = False
) -> LogSlice:
    """The slice of `stored`, lines in the order they were stored in: `in_order` keeps it among lines of one moment."""
    return LogSlice(lines=in_order(stored), first=first, next=next_, cursor=cursor, earlier=earlier, later=later)


def _as_text(segment: Stored, record: dict[str, Any]) -> str:
    rank = record.get("r")
    who = "shoal" if rank is None else f"rank {rank}"
    return f"{_clock(int(record['t'] * 1000))}Z [{segment.attempt}.{segment.node} {who}] {record.get('m', '')}\n"


def _clock(millis: int) -> str:
    return f"{_second(millis // 1000)}.{millis % 1000:03}"


@functools.lru_cache(64)
def _second(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S")
