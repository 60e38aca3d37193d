"""Search in a job's log: raw bytes first, and only lines that may match are decoded.

A search returns after a tenth of a second at the latest, with what was found and the cursor from which to continue.
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
from shoal.server.jobs.streams import log_line
from shoal.server.models.jobs import Segment
from shoal.server.policy import Access
from shoal.server.web.job.logs import Filter, Stored, at, load, place, plain, query

SEARCH_S = 0.1
_BATCH = 64
_ERROR = re.compile(
    r"Traceback \(most recent call last\)|\b[A-Z]\w*(?:Error|Exception)\b|\bERROR\b|\bFATAL\b|out of memory|Segmentation fault",
)
# A line that matches the pattern contains one of these; searching for them is ten times faster.
_ERROR_WORDS = (b"Traceback (", b"Error", b"Exception", b"ERROR", b"FATAL", b"out of memory", b"Segmentation fault")


class Hit(View):
    line: LogLine
    at: int
    """Position of the line, for `around`."""


class Hits(View):
    hits: list[Hit]
    cursor: int
    more: bool
    """True if the search is not complete: continue from `cursor`."""


def search(ctx: Context, access: Access, job: str, chosen: Filter, text: str, *, after: int = 0,
           limit: int = 200) -> Hits:  # fmt: skip
    """Return lines that contain the text, ignoring case."""
    needle = text.casefold()
    # As JSON writes it. Only for ASCII: other letters have two forms in JSON, and case folding may change them.
    raw = json.dumps(needle)[1:-1].encode() if text.isascii() else b""
    wanted = _Wanted(may_hold=lambda some: raw in some.lower(), holds=lambda line: needle in line.casefold())
    return _scan(ctx, query(ctx, access, job, chosen), chosen, wanted, after, limit)


def first_error(ctx: Context, access: Access, job: str, chosen: Filter, *, after: int = 0) -> Hits:
    """Return the first line that looks like an error."""
    wanted = _Wanted(
        may_hold=lambda some: any(word in some for word in _ERROR_WORDS),
        holds=lambda line: _ERROR.search(line) is not None,
    )
    return _scan(ctx, query(ctx, access, job, chosen), chosen, wanted, after, 1)


@dataclass(frozen=True, slots=True)
class _Wanted:
    may_hold: Callable[[bytes], bool]
    """Return whether a whole segment, or a line of it, must be decoded because it may match."""
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
                stopped = _search_segment(segment, packed, start, chosen, wanted, hits, limit, until)
                after = after if stopped is None else place(segment.id, stopped + 1)
            if len(hits) >= limit or time.monotonic() > until:
                return Hits(hits=hits, cursor=after, more=True)
        if len(batch) < _BATCH:
            break
    return Hits(hits=hits, cursor=after, more=False)


def _search_segment(segment: Stored, packed: bytes, start: int, chosen: Filter, wanted: _Wanted, hits: list[Hit],
                    limit: int, until: float) -> int | None:  # fmt: skip
    """Search one segment; return the number of the line at which the limit or the time was reached, else None."""
    for number, line in enumerate(packed.splitlines()[start:], start):
        # The part before the text contains rank and stream.
        if not wanted.may_hold(line[line.find(b'"m"') :]):
            continue
        record = json.loads(line)
        if chosen.matches(record) and wanted.holds(str(record.get("m", ""))):
            found = log_line(segment.attempt, segment.node, record)
            hits.append(Hit(line=found, at=place(segment.id, number)))
        if len(hits) >= limit or time.monotonic() > until:
            return number
    return None
