"""Streams (logs, samples, metrics) arrive in segments and are stored exactly once, by sequence number."""

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
from shoal.core.states import NodeState
from shoal.server.context import Context
from shoal.server.models.jobs import Event, Job, Node, Segment, StreamHead
from shoal.server.policy import Access, AgentIdentity
from shoal.server.services import find, metrics
from shoal.server.services.events import tell

_MAX_PLAIN = 16 << 20
_PAGE_SEGMENTS = 64
_PAGE_LINES = 20_000
LATE = "late_records"
_SKEW_S = 2.0
"""By so much the clocks of machines may differ."""
_RANK = re.compile(r"0|[1-9][0-9]{0,8}")


def append(ctx: Context, who: AgentIdentity, stream: str, seq_first: int, count: int, body: bytes) -> SegmentReply:
    """From fenced attempts too: what they had to say before their end is kept under their number.

    Of a node that was held lost, what it says of later moments is refused: somebody else does its work by then.
    """
    take = _take_metrics if stream == metrics.STREAM else _take_records
    try:
        next_seq = take(ctx, who, stream, seq_first, count, body)
    except Fenced:
        _tell_late(ctx, who)
        raise
    ctx.live.job_changed(who.job_id)
    return SegmentReply(next_seq=next_seq)


def append_part(
    ctx: Context, who: AgentIdentity, stream: str, part: str, seq_first: int, count: int, body: bytes
) -> SegmentReply:
    """As `append`, of a stream that comes in parts (a file each), numbered each by itself."""
    if stream == metrics.STREAM:
        if not _RANK.fullmatch(part):
            raise InvalidSpec(f"{part!r} is not a rank.")
        next_seq = _take_lines(ctx, who, f"{stream}/{part}", seq_first, count, body)
    else:
        next_seq = _take_records(ctx, who, f"{stream}/{part}", seq_first, count, body)
    ctx.live.job_changed(who.job_id)
    return SegmentReply(next_seq=next_seq)


def _take_records(ctx: Context, who: AgentIdentity, stream: str, seq_first: int, count: int, body: bytes) -> int:
    records = _decode(body)
    _check_count(records, count)

    def work(session: Session) -> int:
        head = _head(session, who, stream, seq_first)
        fresh = [r for r in _in_time(session, who, records[head.next_seq - seq_first :]) if r is not None]
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
        ctx.orders.sign(who.attempt_id)
    return next_seq


def _in_time(session: Session, who: AgentIdentity, records: list[Any]) -> list[Any]:
    """With None for those a lost node made after it was given up; Fenced if these are all there are."""
    node = session.get(Node, (who.attempt_id, who.node))
    if node is None or node.state != NodeState.LOST or node.ended_at is None or not records:
        return records
    until = node.ended_at.timestamp() + _SKEW_S
    kept = [None if isinstance(r, dict) and _moment(r) > until else r for r in records]
    if all(r is None for r in kept):
        raise Fenced()
    return kept


def _tell_late(ctx: Context, who: AgentIdentity) -> None:
    """Say in the job's events, once for each node, that what it wrote later is not kept."""

    def work(session: Session) -> bool:
        known = select(Event.seq).where(Event.job_id == who.job_id, Event.kind == LATE, Event.attempt == who.attempt)
        if any(data.get("node") == who.node for data in session.scalars(known.with_only_columns(Event.data))):
            return False
        text = (
            f"node {who.node} of attempt {who.attempt} went on after it was given up; what it wrote later is not kept"
        )
        job = session.get_one(Job, who.job_id)
        tell(session, job, LATE, text, attempt=who.attempt, data={"node": who.node})
        return True

    if ctx.db.write(work):
        ctx.live.job_changed(who.job_id)


def _moment(record: dict[str, Any]) -> float:
    at = record.get("t")
    return float(at) if isinstance(at, int | float) else 0.0


def _take_metrics(ctx: Context, who: AgentIdentity, stream: str, seq_first: int, count: int, body: bytes) -> int:
    """Sorted out before the transaction, by the heads as they are now; again within it should they have moved."""
    from shoal.server.metrics.intake import decode_lines, take

    records = decode_lines(bounded(body))
    _check_count(records, count)
    with ctx.db.read() as session:
        row = session.get(StreamHead, (who.attempt_id, who.node, stream))
        seen, heads = row.next_seq if row else 0, metrics.rank_heads(session, who)
        known = _in_time(session, who, records)
    ready = take(known[max(0, seen - seq_first) :], heads)

    def work(session: Session) -> tuple[int, bool]:
        head = _head(session, who, stream, seq_first)
        if seq_first + count <= head.next_seq:
            return head.next_seq, False
        intake, now, mine = ready, metrics.rank_heads(session, who), _in_time(session, who, records)
        if now != heads or head.next_seq != seen or mine is not known:
            intake = take(mine[head.next_seq - seq_first :], now)
        head.next_seq = seq_first + count
        return head.next_seq, metrics.store(session, who, intake)

    next_seq, kept = ctx.db.write(work)
    if kept:
        ctx.orders.sign(who.attempt_id)
        metrics.merge_now_and_then(ctx, who.job_id, who.attempt)
    return next_seq


def _take_lines(ctx: Context, who: AgentIdentity, part: str, seq_first: int, count: int, body: bytes) -> int:
    """Metrics numbered by the lines of their file, which are their rank's heads too."""
    from shoal.server.metrics.intake import decode_lines, take

    rank = int(part.partition("/")[2])
    records = decode_lines(bounded(body))
    _check_count(records, count)
    for line, record in enumerate(records, seq_first):
        if isinstance(record, dict):
            record |= {"rank": rank, "q": line}

    def work(session: Session) -> tuple[int, bool]:
        head = _head(session, who, part, seq_first)
        intake = take(records, {rank: head.next_seq})
        # Lines that say nothing count too.
        intake.heads[rank] = max(head.next_seq, seq_first + count)
        return intake.heads[rank], metrics.store(session, who, intake)

    next_seq, kept = ctx.db.write(work)
    if kept:
        metrics.merge_now_and_then(ctx, who.job_id, who.attempt)
    return next_seq


def _check_count(records: list[Any], count: int) -> None:
    if len(records) != count or count == 0:
        raise InvalidSpec(f"A segment said to hold {count} records holds {len(records)}.")


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
    """The next page in order of arrival; within a page, lines of all nodes are in order of time."""
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
        found = find.job(session, access, job)
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
    """Of the first so many as make a page: at least one, and no more lines than an answer can bear."""
    lines = 0
    for index, segment in enumerate(segments[:_PAGE_SEGMENTS]):
        lines += segment.count
        if lines > _PAGE_LINES and index:
            return segments[:index]
    return segments[:_PAGE_SEGMENTS]


def _lines(segment: Segment) -> Iterator[LogLine]:
    return (log_line(segment.attempt, segment.node, record) for record in _decode(segment.body))


def in_order(lines: list[LogLine]) -> list[LogLine]:
    """Lines of several nodes in order of time, given in the order they were stored in.

    Lines written in one go have one time. Among them each node's stay together, in their order: the sort is stable.
    """
    return sorted(lines, key=lambda line: (line.attempt, line.at, line.node))


def log_line(attempt: int, node: int, record: dict[str, Any]) -> LogLine:
    return LogLine(
        at=record["t"],
        attempt=attempt,
        node=node,
        rank=record.get("r"),
        stream=record.get("e", "out"),
        text=str(record.get("m", "")),
    )


def _decode(body: bytes) -> list[dict[str, Any]]:
    plain = bounded(body)
    try:
        records = [json.loads(line) for line in plain.splitlines() if line]
        if any(not isinstance(r, dict) or not isinstance(r.get("t"), int | float) for r in records):
            raise ValueError
    except ValueError as error:
        raise InvalidSpec("A segment's records are not JSON lines with a time.") from error
    return records


def bounded(body: bytes) -> bytes:
    """Decompress, refusing what would be larger than a segment may be: a bomb is not unpacked to be measured."""
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
