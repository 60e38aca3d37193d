"""Writing of metrics: points are stored once, by series; small blocks are merged now and then."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import zstandard
from sqlalchemy import CursorResult, delete, func, insert, select
from sqlalchemy.orm import Session

from shoal.core.errors import Refused
from shoal.core.records import Kind
from shoal.core.run_params import params_of
from shoal.server.context import Context
from shoal.server.metrics import summaries
from shoal.server.models.jobs import Job, Segment, StreamHead
from shoal.server.models.metrics import MetricBlock, MetricSeries
from shoal.server.policy import AgentIdentity

if TYPE_CHECKING:
    # Importing numpy takes a tenth of a second, and only metrics need it.
    from shoal.server.metrics.intake import Intake

STREAM = "metric"
MAX_SERIES = 10_000
"""Most metrics of one attempt, so that a script that invents endless names cannot fill the database."""
_MERGE_EVERY = 16
_MERGE_AT_ONCE = 50


def rank_heads(session: Session, who: AgentIdentity) -> dict[int, int]:
    """Return rank → next line of its spool file. Lines below it were stored before and are skipped if they are sent again."""
    rows = session.execute(
        select(StreamHead.stream, StreamHead.next_seq).where(
            StreamHead.attempt_id == who.attempt_id,
            StreamHead.node == who.node,
            StreamHead.stream.startswith(f"{STREAM}/"),
        )
    )
    return {int(stream.partition("/")[2]): head for stream, head in rows}


def store(session: Session, who: AgentIdentity, intake: Intake) -> bool:
    """Store points and records in the transaction that moves the stream's head; return whether there was anything to store."""
    known = rank_heads(session, who)
    for rank, head in intake.heads.items():
        if known.get(rank) != head:
            session.merge(
                StreamHead(attempt_id=who.attempt_id, node=who.node, stream=f"{STREAM}/{rank}", next_seq=head)
            )
    if intake.is_empty:
        return False
    job = session.get_one(Job, who.job_id)
    job.metrics_cursor += 1
    if intake.others:
        _keep_others(session, who, intake.others, job.metrics_cursor)
        _note_config(job, intake.others)
    if intake.series:
        _add_points(session, who, intake, job.metrics_cursor)
    return True


def read_others(session: Session, job_id: str, kinds: Collection[Kind]) -> list[dict[str, Any]]:
    """Return the records of these kinds, oldest first, each with its attempt and node."""
    query = select(Segment).where(Segment.job_id == job_id, Segment.stream == STREAM).order_by(Segment.id)
    decompress = zstandard.ZstdDecompressor().decompress
    return [
        {**record, "attempt": segment.attempt, "node": segment.node}
        for segment in session.scalars(query)
        for record in json.loads(decompress(segment.body))
        if record["k"] in kinds
    ]


_lock = threading.Lock()
_since_merge: Counter[tuple[str, int]] = Counter()


def merge_now_and_then(ctx: Context, job_id: str, attempt: int) -> None:
    """Merge an attempt's blocks after every `_MERGE_EVERY` calls.

    An agent sends twice a second, each time a block per metric.
    """
    key = (job_id, attempt)
    with _lock:
        _since_merge[key] += 1
        if _since_merge[key] < _MERGE_EVERY:
            return
        del _since_merge[key]
    merge(ctx, job_id, attempt)


def merge(ctx: Context, job_id: str, attempt: int) -> int:
    """Merge small blocks of an attempt; return by how many there are fewer.

    Blocks are read and merged outside the transaction, then replaced in one: readers see either the old blocks or the new one.
    If another merge was faster, the deletion does not find all blocks, and the result is dropped.
    """
    with ctx.db.read() as session:
        many = list(
            session.scalars(
                select(MetricBlock.series_id)
                .join(MetricSeries, MetricSeries.id == MetricBlock.series_id)
                .where(MetricSeries.job_id == job_id, MetricSeries.attempt == attempt)
                .group_by(MetricBlock.series_id)
                .having(func.count() >= _MERGE_EVERY)
            )
        )
    saved = 0
    for start in range(0, len(many), _MERGE_AT_ONCE):
        saved += _merge_some(ctx, many[start : start + _MERGE_AT_ONCE])
    return saved


def _merge_some(ctx: Context, series_ids: list[int]) -> int:
    with ctx.db.read() as session:
        found = [_mergeable(session, series_id) for series_id in series_ids]
    plans = [(blocks, _merged(blocks)) for groups in found for blocks in groups]
    if not plans:
        return 0

    def work(session: Session) -> None:
        for blocks, _row in plans:
            gone: CursorResult[Any] = session.execute(  # type: ignore[assignment]
                delete(MetricBlock).where(MetricBlock.id.in_([b.id for b in blocks]))
            )
            if gone.rowcount != len(blocks):
                raise Refused("Another merge has already replaced these blocks.")
        session.execute(insert(MetricBlock), [row for _, row in plans])

    try:
        ctx.db.write(work)
    except Refused:
        return 0
    return sum(len(blocks) - 1 for blocks, _ in plans)


def _mergeable(session: Session, series_id: int) -> list[list[MetricBlock]]:
    from shoal.server.metrics.stitch import due_merges

    sizes = session.execute(
        select(MetricBlock.id, MetricBlock.count)
        .where(MetricBlock.series_id == series_id)
        .order_by(MetricBlock.first, MetricBlock.id)
    ).all()
    groups = []
    for start, end in due_merges([count for _, count in sizes]):
        ids = [block_id for block_id, _ in sizes[start:end]]
        query = select(MetricBlock).where(MetricBlock.id.in_(ids)).order_by(MetricBlock.first, MetricBlock.id)
        groups.append(list(session.scalars(query)))
    return groups


def _merged(blocks: list[MetricBlock]) -> dict[str, Any]:
    from shoal.server.metrics.columns import Block, join

    points = join([Block(b.body, b.first).points for b in blocks])
    return _block(blocks[0].series_id, points, blocks[0].first, blocks[-1].last)


def _block(series_id: int, points: Any, first: int, last: int) -> dict[str, Any]:
    from shoal.server.metrics.columns import pack, summary

    found = summary(points)
    return {
        "series_id": series_id,
        "first": first,
        "last": last,
        "count": found.count,
        "step_min": found.step_min,
        "step_max": found.step_max,
        "rising": found.rising,
        "value_min": found.value_min,
        "value_max": found.value_max,
        "body": pack(points, with_arrivals=first != last),
    }


def _keep_others(session: Session, who: AgentIdentity, records: list[dict[str, Any]], cursor: int) -> None:
    session.add(
        Segment(
            job_id=who.job_id,
            attempt=who.attempt,
            node=who.node,
            stream=STREAM,
            seq_first=cursor,
            count=len(records),
            t_last=max((r["t"] for r in records if isinstance(r.get("t"), int | float)), default=0.0),
            body=zstandard.ZstdCompressor(level=3).compress(json.dumps(records).encode()),
        )
    )


def _add_points(session: Session, who: AgentIdentity, intake: Intake, cursor: int) -> None:
    from shoal.server.metrics.columns import points, wire

    mine = select(MetricSeries).where(MetricSeries.job_id == who.job_id, MetricSeries.attempt == who.attempt)
    known = {(s.kind, s.name): s for s in session.scalars(mine)}
    fresh, blocks = [], []
    for (kind, name), columns in intake.series.items():
        series = known.get((kind, name))
        found = points(*columns, arrival=cursor)
        last = json.dumps(wire(found.values[-1].item() if not found.is_mixed else found.values[-1]))
        before = None if series is None else series.last_step
        if series is not None:
            series.first_step = min(series.first_step, *columns[0])
            series.last_step, series.last = columns[0][-1], last
        elif len(known) < MAX_SERIES:
            series = known[kind, name] = MetricSeries(
                job_id=who.job_id,
                attempt=who.attempt,
                kind=kind,
                name=name,
                first_step=min(columns[0]),
                last_step=columns[0][-1],
                last=last,
            )
            fresh.append(series)
        else:
            continue
        blocks.append((series, found, before))
    session.add_all(fresh)
    session.flush()
    if blocks:
        session.execute(insert(MetricBlock), [_block(s.id, p, cursor, cursor) for s, p, _ in blocks])
        summaries.update(session, who, blocks)


def _note_config(job: Job, records: list[dict[str, Any]]) -> None:
    """Store the hyperparameters that a script logged, so that queries need not read the records."""
    told = [r.get("v") for r in records if r.get("k") == Kind.CONFIG]
    if told and isinstance(told[-1], dict):
        job.params = params_of(job.spec["entry"], told[-1])
