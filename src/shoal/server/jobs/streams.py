"""Streams (logs, samples, metrics) of agents: they arrive in segments and are stored exactly once, by sequence number.

Why each record is stored once:
- The agent numbers its records and keeps them until the server acknowledges them. `StreamHead.next_seq` is the number of the
  next record the server expects; records below it are skipped, and a gap is refused (OutOfSequence), so the agent sends again.
- The head and the records are written in one transaction of `db.write`, which runs in the database's single writer thread. A
  crash before the commit stores neither, one after it both; if only the reply was lost, the agent sends the segment again.
- Metrics are parsed before the transaction, from heads that may be outdated by then; the transaction compares the heads and
  parses again if they have changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import zstandard
from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.agents import SegmentReply
from shoal.core.errors import Fenced, InvalidSpec, OutOfSequence
from shoal.core.jobs import LogLine, LogPage
from shoal.core.schema import MOST_INT, MOST_TIME_S, valid_text
from shoal.core.states import NodeState
from shoal.server import lookup
from shoal.server.context import Context
from shoal.server.jobs.events import record_event
from shoal.server.metrics import writes as metrics
from shoal.server.models.jobs import Event, Job, Node, Segment, StreamHead
from shoal.server.policy import Access, AgentIdentity

_MAX_PLAIN = 16 << 20
_PAGE_SEGMENTS = 64
_PAGE_LINES = 20_000
LATE = "late_records"
_SKEW_S = 2.0
"""Seconds by which the clocks of machines may differ."""
_RANK = re.compile(r"0|[1-9][0-9]{0,8}")


def append(ctx: Context, who: AgentIdentity, stream: str, seq_first: int, count: int, body: bytes) -> SegmentReply:
    """Store a segment of a stream; return the next sequence number expected.

    Segments of fenced attempts are stored too, under their own attempt number. Records that a lost node made after it was given
    up are refused, because another attempt does its work by then.
    """
    take = _store_metrics if stream == metrics.STREAM else _store_records
    try:
        next_seq = take(ctx, who, stream, seq_first, count, body)
    except Fenced:
        _record_late(ctx, who)
        raise
    ctx.live.job_changed(who.job_id)
    return SegmentReply(next_seq=next_seq)


def append_part(
    ctx: Context, who: AgentIdentity, stream: str, part: str, seq_first: int, count: int, body: bytes
) -> SegmentReply:
    """Store a segment of a stream in parts (one file each); every part has its own sequence numbers."""
    if stream == metrics.STREAM:
        if not _RANK.fullmatch(part):
            raise InvalidSpec(f"{part!r} is not a rank.")
        next_seq = _store_lines(ctx, who, f"{stream}/{part}", seq_first, count, body)
    else:
        next_seq = _store_records(ctx, who, f"{stream}/{part}", seq_first, count, body)
    ctx.live.job_changed(who.job_id)
    return SegmentReply(next_seq=next_seq)


def _store_records(ctx: Context, who: AgentIdentity, stream: str, seq_first: int, count: int, body: bytes) -> int:
    records = decode_segment(body)
    _check_count(records, count)
    if any(not 0 <= record["t"] < MOST_TIME_S for record in records):
        raise InvalidSpec("A segment's records have times that are no dates.")

    def work(session: Session) -> int:
        head = _head(session, who, stream, seq_first)
        fresh = [r for r in _in_time(ctx, session, who, records[head.next_seq - seq_first :]) if r is not None]
        if fresh:
            session.add(
                Segment(
                    job_id=who.job_id,
                    attempt=who.attempt,
                    node=who.node,
                    stream=stream.partition("/")[0],
                    seq_first=head.next_seq,
                    count=len(fresh),
                    t_last=float(fresh[-1].get("t", 0.0)),
                    body=body if len(fresh) == count else _encode(fresh),
                )
            )
        head.next_seq = max(head.next_seq, seq_first + count)
        return head.next_seq

    next_seq = ctx.db.write(work)
    if stream == "log" and any(r.get("r") is not None for r in records):
        ctx.commands.record_progress(who.attempt_id)
    return next_seq


def _in_time(ctx: Context, session: Session, who: AgentIdentity, records: list[Any]) -> list[Any]:
    """Return the records, with None for those a lost node made after it was given up; raise Fenced if none is left."""
    node = session.get(Node, (who.attempt_id, who.node))
    if node is None or node.state != NodeState.LOST or node.ended_at is None or not records:
        return records
    # Records carry the time of their machine, which may be this one: then a changed system clock is ahead of ours.
    until = node.ended_at.timestamp() + _SKEW_S + max(0.0, ctx.clock.gap_s)
    kept = [None if isinstance(r, dict) and _moment(r) > until else r for r in records]
    if all(r is None for r in kept):
        raise Fenced()
    return kept


def _record_late(ctx: Context, who: AgentIdentity) -> None:
    """Record in the job's events, once per node, that its later records are discarded."""

    def work(session: Session) -> bool:
        known = select(Event.seq).where(Event.job_id == who.job_id, Event.kind == LATE, Event.attempt == who.attempt)
        if any(data.get("node") == who.node for data in session.scalars(known.with_only_columns(Event.data))):
            return False
        text = f"node {who.node} of attempt {who.attempt} kept running after it was given up; its later records are discarded"
        job = session.get_one(Job, who.job_id)
        record_event(session, job, LATE, text, attempt=who.attempt, data={"node": who.node})
        return True

    if ctx.db.write(work):
        ctx.live.job_changed(who.job_id)


def _moment(record: dict[str, Any]) -> float:
    at = record.get("t")
    return float(at) if isinstance(at, int | float) else 0.0


def _store_metrics(ctx: Context, who: AgentIdentity, stream: str, seq_first: int, count: int, body: bytes) -> int:
    """Store a segment of metrics. It is parsed before the transaction, and again inside it if the heads have changed."""
    from shoal.server.metrics.intake import decode_lines, select_new

    records = decode_lines(bounded(body))
    _check_count(records, count)
    with ctx.db.read() as session:
        row = session.get(StreamHead, (who.attempt_id, who.node, stream))
        seen, heads = row.next_seq if row else 0, metrics.rank_heads(session, who)
        known = _in_time(ctx, session, who, records)
    ready = select_new(known[max(0, seen - seq_first) :], heads)

    def work(session: Session) -> tuple[int, bool]:
        head = _head(session, who, stream, seq_first)
        if seq_first + count <= head.next_seq:
            return head.next_seq, False
        intake, now, mine = ready, metrics.rank_heads(session, who), _in_time(ctx, session, who, records)
        if now != heads or head.next_seq != seen or mine is not known:
            intake = select_new(mine[head.next_seq - seq_first :], now)
        head.next_seq = seq_first + count
        return head.next_seq, metrics.store(session, who, intake)

    next_seq, kept = ctx.db.write(work)
    if kept:
        ctx.commands.record_progress(who.attempt_id)
        metrics.merge_now_and_then(ctx, who.job_id, who.attempt)
    return next_seq


def _store_lines(ctx: Context, who: AgentIdentity, part: str, seq_first: int, count: int, body: bytes) -> int:
    """Store metrics of one rank's file, whose line numbers are their sequence numbers."""
    from shoal.server.metrics.intake import decode_lines, select_new

    rank = int(part.partition("/")[2])
    records = decode_lines(bounded(body))
    _check_count(records, count)
    for line, record in enumerate(records, seq_first):
        if isinstance(record, dict):
            record |= {"rank": rank, "q": line}

    def work(session: Session) -> tuple[int, bool]:
        head = _head(session, who, part, seq_first)
        intake = select_new(records, {rank: head.next_seq})
        # Lines without a record count too.
        intake.heads[rank] = max(head.next_seq, seq_first + count)
        return intake.heads[rank], metrics.store(session, who, intake)

    next_seq, kept = ctx.db.write(work)
    if kept:
        metrics.merge_now_and_then(ctx, who.job_id, who.attempt)
    return next_seq


def _check_count(records: list[Any], count: int) -> None:
    if len(records) != count or count == 0:
        raise InvalidSpec(f"A segment declares {count} records but contains {len(records)}.")


def _head(session: Session, who: AgentIdentity, stream: str, seq_first: int) -> StreamHead:
    head = session.get(StreamHead, (who.attempt_id, who.node, stream))
    if head is None:
        head = StreamHead(attempt_id=who.attempt_id, node=who.node, stream=stream, next_seq=0)
        session.add(head)
    if seq_first > head.next_seq:
        raise OutOfSequence(details={"next_seq": head.next_seq})
    return head


def read_logs(
    ctx: Context,
    access: Access,
    job: str,
    *,
    after: int = 0,
    node: int | None = None,
    rank: int | None = None,
    since: float | None = None,
    attempt: int | None = None,
) -> LogPage:
    """Return the next page in order of arrival; within a page the lines of all nodes are sorted by time."""
    query = (
        select(Segment)
        .where(Segment.stream == "log", Segment.id > after)
        .order_by(Segment.id)
        .limit(_PAGE_SEGMENTS + 1)
    )
    if node is not None:
        query = query.where(Segment.node == node)
    if attempt is not None:
        query = query.where(Segment.attempt == attempt)
    if since is not None:
        query = query.where(Segment.t_last >= since)
    with ctx.db.read() as session:
        found = lookup.job(session, access, job)
        segments = list(session.scalars(query.where(Segment.job_id == found.id)))
    page = _page(segments)
    more = len(segments) > len(page)
    lines = [
        line
        for segment in page
        for line in _lines(segment)
        if (rank is None or line.rank == rank) and (since is None or line.at >= since)
    ]
    return LogPage(lines=in_order(lines), cursor=page[-1].id if page else after, more=more)


def _page(segments: list[Segment]) -> list[Segment]:
    """Return the first segments that make a page: at least one, and at most `_PAGE_LINES` lines beyond that."""
    lines = 0
    for index, segment in enumerate(segments[:_PAGE_SEGMENTS]):
        lines += segment.count
        if lines > _PAGE_LINES and index:
            return segments[:index]
    return segments[:_PAGE_SEGMENTS]


def _lines(segment: Segment) -> Iterator[LogLine]:
    return (log_line(segment.attempt, segment.node, record) for record in decode_segment(segment.body))


def in_order(lines: list[LogLine]) -> list[LogLine]:
    """Sort lines of several nodes by time; they must be given in the order in which they were stored.

    Lines written together have the same time. Among them the lines of each node stay together and in order: the sort is stable.
    """
    return sorted(lines, key=lambda line: (line.attempt, line.at, line.node))


def log_line(attempt: int, node: int, record: dict[str, Any]) -> LogLine:
    """Return a stored record as a line. Whatever a script or an import wrote, a line comes of it: one bad record must not
    make a whole log unreadable."""
    rank, stream = record.get("r"), record.get("e", "out")
    return LogLine(
        at=record["t"],
        attempt=attempt,
        node=node,
        rank=rank if isinstance(rank, int) and abs(rank) <= MOST_INT else None,
        stream=stream if stream in ("out", "err", "sys") else "out",
        text=valid_text(str(record.get("m", ""))),
    )


def decode_segment(body: bytes) -> list[dict[str, Any]]:
    """Return the records in a segment's body."""
    plain = bounded(body)
    try:
        records = [json.loads(line) for line in plain.splitlines() if line]
        if any(not isinstance(r, dict) or not isinstance(r.get("t"), int | float) for r in records):
            raise ValueError
    except (ValueError, RecursionError) as error:
        raise InvalidSpec("A segment's records are not JSON lines with a time.") from error
    return records


def bounded(body: bytes) -> bytes:
    """Decompress a segment; raise if it is larger than allowed, without unpacking more than the limit."""
    try:
        with zstandard.ZstdDecompressor().stream_reader(body) as reader:
            plain = reader.read(_MAX_PLAIN + 1)
    except zstandard.ZstdError as error:
        raise InvalidSpec("A segment's body is not zstd.") from error
    if len(plain) > _MAX_PLAIN:
        raise InvalidSpec(f"A segment is over {_MAX_PLAIN >> 20} MiB unpacked.")
    return plain


def _encode(records: list[dict[str, Any]]) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress("\n".join(json.dumps(r) for r in records).encode())
