"""Looking for lines in a job's log: packed bytes first, and only lines that may match are decoded.

An answer comes after a tenth of a second at the latest, with what was found and the place to go on from.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import zstandard
from sqlalchemy import Select

from shoal.core.jobs import LogLine
from shoal.core.schema import View
from shoal.server.context import Context
from shoal.server.models.jobs import Segment
from shoal.server.policy import Access
from shoal.server.services.streams import log_line
from shoal.server.web.logs import Filter, Stored, at, load, place, plain, query

SEARCH_S = 0.1
_BATCH = 64
_ERROR = re.compile(
    r"Traceback \(most recent call last\)|\b[A-Z]\w*(?:Error|Exception)\b|\bERROR\b|\bFATAL\b|out of memory|Segmentation fault",
)
# A line the pattern takes holds one of these; looking for them is ten times as quick.
_ERROR_WORDS = (b"Traceback (", b"Error", b"Exception", b"ERROR", b"FATAL", b"out of memory", b"Segmentation fault")


class Hit(View):
    line: LogLine
    at: int
    """Give it to `around`."""


class Hits(View):
    hits: list[Hit]
    cursor: int
    more: bool
    """Not all was searched yet: ask again from `cursor`."""


def search(ctx: Context, access: Access, job: str, chosen: Filter, text: str, *, after: int = 0,
           limit: int = 200) -> Hits:  # fmt: skip
    """Lines that hold the text, in any case."""
    needle = text.casefold()
    # As JSON writes it. Other letters may be written in two ways, and be folded into these.
    raw = json.dumps(needle)[1:-1].encode() if text.isascii() else b""
    wanted = _Wanted(may_hold=lambda some: raw in some.lower(), holds=lambda line: needle in line.casefold())
    return _scan(ctx, query(ctx, access, job, chosen), chosen, wanted, after, limit)


def first_error(ctx: Context, access: Access, job: str, chosen: Filter, *, after: int = 0) -> Hits:
    """The first line that looks like one."""
    wanted = _Wanted(
        may_hold=lambda some: any(word in some for word in _ERROR_WORDS),
        holds=lambda line: _ERROR.search(line) is not None,
    )
    return _scan(ctx, query(ctx, access, job, chosen), chosen, wanted, after, 1)


@dataclass(frozen=True, slots=True)
class _Wanted:
    may_hold: Callable[[bytes], bool]
    """Whether a whole segment, or a line of it, is worth decoding."""
    holds: Callable[[str], bool]


def _scan(ctx: Context, query: Select[Any], chosen: Filter, wanted: _Wanted, after: int, limit: int) -> Hits:
    hits: list[Hit] = []
    unpack, until = zstandard.ZstdDecompressor(), time.monotonic() + SEARCH_S
    query = query.order_by(Segment.id).limit(_BATCH)
    while batch := load(ctx, query.where(Segment.id >= at(after)[0])):
        for segment in batch:
            start = at(after)[1] if at(after)[0] == segment.id else 0
            packed = plain(segment.body, unpack)
            after = place(segment.id + 1, 0)
            if wanted.may_hold(packed):
                stopped = _look(segment, packed, start, chosen, wanted, hits, limit, until)
                after = after if stopped is None else place(segment.id, stopped + 1)
            if len(hits) >= limit or time.monotonic() > until:
                return Hits(hits=hits, cursor=after, more=True)
        if len(batch) < _BATCH:
            break
    return Hits(hits=hits, cursor=after, more=False)


def _look(segment: Stored, packed: bytes, start: int, chosen: Filter, wanted: _Wanted, hits: list[Hit], limit: int,
          until: float) -> int | None:  # fmt: skip
    """The number of the line at which there was enough, or no time left."""
    for number, line in enumerate(packed.splitlines()[start:], start):
        # What stands before the text tells of rank and stream.
        if not wanted.may_hold(line[line.find(b'"m"') :]):
            continue
        record = json.loads(line)
        if chosen.takes(record) and wanted.holds(str(record.get("m", ""))):
            told = log_line(segment.attempt, segment.node, record)
            hits.append(Hit(line=told, at=place(segment.id, number)))
        if len(hits) >= limit or time.monotonic() > until:
            return number
    return None
