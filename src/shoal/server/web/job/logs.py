"""Log of a job for its page: the end first, backwards from there, around a position, or all of it as text.

A position identifies a line: its segment and its number in the segment, packed into one integer that JavaScript can
represent. A long log is never read at once; only `download` reads all of it, one segment at a time. `log_search` searches it.
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
from shoal.server import lookup
from shoal.server.context import Context
from shoal.server.jobs.streams import bounded, in_order, log_line
from shoal.server.models.jobs import Segment
from shoal.server.policy import Access

LINE_BITS = 21
"""Bits of the line number in a position: a segment unpacks to at most 16 MiB, and a record has at least eight bytes. logs.js
uses the same number."""
_FEW, _BATCH = 8, 64
_MOST_READ = 30_000
"""Maximum number of records read for one reply, however few of them pass the filter."""
_MAX_PLAIN = 16 << 20
_PIECE = 1000

_COLUMNS: list[Any] = [Segment.id, Segment.attempt, Segment.node, Segment.body]

Stored = Row[Any]
"""Row of a segment with `_COLUMNS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    attempt: int | None = None
    node: int | None = None
    rank: int | None = None

    def apply(self, query: Select[Any]) -> Select[Any]:
        if self.attempt is not None:
            query = query.where(Segment.attempt == self.attempt)
        return query if self.node is None else query.where(Segment.node == self.node)

    def matches(self, record: dict[str, Any]) -> bool:
        return self.rank is None or record.get("r") == self.rank


class LogSlice(View):
    lines: list[LogLine]
    first: int
    """Position of the first line; pass it as `before` to get earlier lines."""
    next: int
    """Position after the last line; pass it as `after` to get later lines."""
    cursor: int
    """Cursor for the API's `follow`, to get lines that are written from now on."""
    earlier: bool
    later: bool = False
    places: list[int] = []
    """Position of each line."""


def tail(ctx: Context, access: Access, job: str, chosen: Filter, *, before: int | None = None,
         wanted: int = 1000) -> LogSlice:  # fmt: skip
    """Return the last lines, or those before a position."""
    return _backwards(ctx, query(ctx, access, job, chosen), chosen, before, wanted)


def around(ctx: Context, access: Access, job: str, chosen: Filter, at: int) -> LogSlice:
    """Return a line with lines before and after it."""
    found = query(ctx, access, job, chosen)
    head, rest = _backwards(ctx, found, chosen, at, 300), _forwards(ctx, found, chosen, at, 700)
    lines, places = _sorted([*head.lines, *rest.lines], [*head.places, *rest.places])
    return rest.model_copy(update={"lines": lines, "places": places, "first": head.first, "earlier": head.earlier})


def place_at(ctx: Context, access: Access, job: str, chosen: Filter, moment: float) -> int:
    """Return the position of the first line at or after a Unix time; that of the last line if there is none."""
    with ctx.db.read() as session:
        job_id = lookup.job(session, access, job).id
        known = chosen.apply(select(Segment.id).where(Segment.job_id == job_id, Segment.stream == "log"))
        chosen_id = session.scalar(known.where(Segment.t_last >= moment).order_by(Segment.id).limit(1))
        if chosen_id is None:
            last = session.scalar(known.order_by(Segment.id.desc()).limit(1))
            return place((last or 0) + 1, 0)
        body = session.scalars(select(Segment.body).where(Segment.id == chosen_id)).one()
    for number, raw in enumerate(plain(body).splitlines()):
        if raw:
            record = json.loads(raw)
            if chosen.matches(record) and float(record["t"]) >= moment:
                return place(chosen_id, number)
    return place(chosen_id, 0)


def following(ctx: Context, access: Access, job: str, chosen: Filter, after: int) -> LogSlice:
    """Return the line at a position and the lines after it."""
    return _forwards(ctx, query(ctx, access, job, chosen), chosen, after, 1000)


def download(
    ctx: Context, access: Access, job: str, chosen: Filter, *, with_places: bool = False
) -> tuple[str, Iterator[bytes]]:
    """Return the job's name and its whole log as text; `with_places` puts its position and a space before each line."""
    with ctx.db.read() as session:
        name = lookup.job(session, access, job).name
    some = query(ctx, access, job, chosen).order_by(Segment.id).limit(_FEW)

    def pieces() -> Iterator[bytes]:
        after = 0
        while batch := load(ctx, some.where(Segment.id > after)):
            after = batch[-1].id
            for segment in batch:
                lines = plain(segment.body).splitlines()
                for start in range(0, len(lines), _PIECE):
                    some_lines = enumerate(lines[start : start + _PIECE], start)
                    records = [(number, json.loads(line)) for number, line in some_lines if line]
                    texts = [
                        f"{place(segment.id, number)} {record['m']}\n" if with_places else _as_text(segment, record)
                        for number, record in records
                        if chosen.matches(record)
                    ]
                    yield "".join(texts).encode("utf-8", "replace")

    return name, pieces()


def place(segment: int, line: int) -> int:
    return segment << LINE_BITS | line


def at(where: int) -> tuple[int, int]:
    """Return (segment, line) of a position."""
    return where >> LINE_BITS, where & ((1 << LINE_BITS) - 1)


def query(ctx: Context, access: Access, job: str, chosen: Filter) -> Select[Any]:
    with ctx.db.read() as session:
        job_id = lookup.job(session, access, job).id
    columns: Select[Any] = select(*_COLUMNS)
    return chosen.apply(columns.where(Segment.job_id == job_id, Segment.stream == "log"))


def load(ctx: Context, query: Select[Any]) -> Sequence[Stored]:
    with ctx.db.read() as session:
        return session.execute(query).all()


def plain(body: bytes, unpack: zstandard.ZstdDecompressor | None = None) -> bytes:
    """Return the uncompressed records of a segment. Agents declare the size, so no buffer of the maximum size is needed."""
    size = zstandard.frame_content_size(body)
    if 0 <= size <= _MAX_PLAIN:
        return (unpack or zstandard.ZstdDecompressor()).decompress(body)
    return bounded(body)


@dataclass(slots=True)
class _Reader:
    """Collects lines from segments until it has enough, or has read `_MOST_READ` records."""

    chosen: Filter
    wanted: int
    lines: list[LogLine] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    read: int = 0

    def add_segment(self, segment: Stored, records: list[bytes], numbers: range) -> int | None:
        """Collect lines of a segment; return the number of the line at which it had enough, else None."""
        for number in numbers:
            self.read += 1
            if records[number]:
                record = json.loads(records[number])
                if self.chosen.matches(record):
                    self.lines.append(log_line(segment.attempt, segment.node, record))
                    self.places.append(place(segment.id, number))
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
            stopped = reader.add_segment(segment, records, range(until - 1, -1, -1))
            first = place(segment.id, stopped or 0)
            if stopped is not None:
                earlier = stopped > 0 or index + 1 < len(batch) or len(batch) == size
                return _slice(reader, first, before or place(cursor + 1, 0), cursor, earlier=earlier, is_reversed=True)
        if len(batch) < size:
            cursor = cursor or 0
            return _slice(reader, first, before or place(cursor + 1, 0), cursor, earlier=False, is_reversed=True)
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
            stopped = reader.add_segment(segment, records, range(begin, len(records)))
            if stopped is not None:
                later = stopped + 1 < len(records) or index + 1 < len(batch) or len(batch) == size
                return _slice(reader, after, place(segment.id, stopped + 1), cursor, earlier=True, later=later)
        lower, is_last, size = place(cursor + 1, 0), len(batch) < size, _BATCH
        if is_last:
            return _slice(reader, after, lower, cursor, earlier=True)


def _slice(
    reader: _Reader,
    first: int,
    next_: int,
    cursor: int,
    *,
    earlier: bool,
    later: bool = False,
    is_reversed: bool = False,
) -> LogSlice:
    """Return a slice sorted by time; lines of equal time stay in storage order."""
    step = -1 if is_reversed else 1
    lines, places = _sorted(reader.lines[::step], reader.places[::step])
    return LogSlice(
        lines=lines, places=places, first=first, next=next_, cursor=cursor, earlier=earlier, later=later
    )  # fmt: skip


def _sorted(lines: list[LogLine], places: list[int]) -> tuple[list[LogLine], list[int]]:
    """Return lines, and their positions, in the order in which `in_order` puts lines in storage order."""
    place_of = {id(line): where for line, where in zip(lines, places, strict=True)}
    ordered = in_order(lines)
    return ordered, [place_of[id(line)] for line in ordered]


def _as_text(segment: Stored, record: dict[str, Any]) -> str:
    rank = record.get("r")
    who = "shoal" if rank is None else f"rank {rank}"
    return f"{_clock(int(record['t'] * 1000))}Z [{segment.attempt}.{segment.node} {who}] {record.get('m', '')}\n"


def _clock(millis: int) -> str:
    return f"{_second(millis // 1000)}.{millis % 1000:03}"


@functools.lru_cache(64)
def _second(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S")
