"""The ledger as it is written: in the same transaction as what opens, extends or ends a node's hold on its slots.

All writers run in the database's one writer thread, so that the chain has no forks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.money import KINDS, MILLION, cost_of
from shoal.core.settings import ServerSettings
from shoal.core.states import AttemptState, NodeState
from shoal.engines.base import Machine
from shoal.server.context import Context
from shoal.server.meter import Meter
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.models.ledger import LedgerEntry, LedgerHead, OpenSpan
from shoal.server.services import ledger_rules as rules
from shoal.server.services.ledger_rules import Interval, Piece

_HELD = ("workspace_id", "job_id", "job", "person", "attempt", "machine", "kind", "slots", "price", "currency")


def price_of(settings: ServerSettings, kind: str) -> int:
    """Of one slot for an hour, in millionths."""
    return round(getattr(settings, f"price_{kind}") * MILLION) if kind in KINDS else 0


def open_nodes(
    session: Session, meter: Meter, attempt: Attempt, machines: Iterable[Machine], settings: ServerSettings
) -> None:
    """Its nodes get their slots. What they cost is settled now; time counts from each agent's first word."""
    settle_clock(session, meter)
    kinds = {machine.name: machine.kind for machine in machines}
    job = session.get_one(Job, attempt.job_id)
    for node in session.scalars(select(Node).where(Node.attempt_id == attempt.id)):
        kind = kinds.get(node.machine, "cpu")
        session.add(_span(job, attempt, node, kind, price_of(settings, kind), settings.currency))
    session.flush()


def settle_clock(session: Session, meter: Meter) -> None:
    """While nothing is open it follows the time of day. This is written down before anything is measured by it."""
    if session.scalar(select(OpenSpan.attempt_id).limit(1)) is None:
        meter.set_by_wall()
    _note_clock(_head(session, meter), meter)


def hear(session: Session, meter: Meter, attempt_id: str, node: int) -> None:
    """A node's word, made to last with whatever else it changes."""
    if (span := session.get(OpenSpan, (attempt_id, node))) is not None:
        _set(span, _so_far(span, meter))


def end_node(session: Session, meter: Meter, attempt_id: str, node: int, *, lease_s: float | None) -> None:
    """It gives its slots back: by its own word, good for so long since the last one; or lost, without a lease."""
    span = session.get(OpenSpan, (attempt_id, node))
    if span is None:
        return
    interval = _so_far(span, meter)
    pieces = rules.lost(interval) if lease_s is None else rules.ended(interval, meter.now_ms, round(lease_s * 1000))
    _enter(session, meter, span, pieces)
    session.delete(span)
    session.flush()


def renew(session: Session, meter: Meter) -> None:
    """Make last what was heard, and enter whole hours of what goes on."""
    spans = session.scalars(select(OpenSpan)).all()
    for span in spans:
        interval, pieces = rules.hours(_so_far(span, meter))
        _enter(session, meter, span, pieces)
        _set(span, interval)
    meter.keep_only({(span.attempt_id, span.node) for span in spans})
    _note_clock(_head(session, meter), meter)
    session.flush()


def begin(ctx: Context) -> None:
    """At start-up: the clock goes on, and a database from before the ledger gets one of what it remembers, without prices."""
    meter, kinds = ctx.meter, {machine.name: machine.kind for machine in ctx.engine.capacity()}

    def work(session: Session) -> None:
        head = session.get(LedgerHead, 1)
        if head is None:
            _take_over(session, meter, kinds, ctx.settings.currency)
        else:
            meter.resume(head.boot_id, head.boot_ms, head.at_ms)
        settle_clock(session, meter)

    ctx.db.write(work)


def _take_over(session: Session, meter: Meter, kinds: Mapping[str, str], currency: str) -> None:
    rows = session.execute(
        select(Job, Attempt, Node)
        .join(Attempt, Attempt.job_id == Job.id)
        .join(Node, Node.attempt_id == Attempt.id)
        .where(Attempt.started_at.is_not(None))
        .order_by(Attempt.id, Node.index)
    )
    for job, attempt, node in rows:
        span = _span(job, attempt, node, kinds.get(node.machine, "cpu"), 0, currency)
        start_ms, end_ms = _ms(attempt.started_at), _ms(node.ended_at or attempt.ended_at)
        if attempt.state == AttemptState.ENDED or NodeState(node.state).is_terminal:
            _enter(session, meter, span, rules.lost(Interval(start_ms, end_ms)))
        else:
            span.start_ms = span.heard_ms = start_ms
            session.add(span)


def _span(job: Job, attempt: Attempt, node: Node, kind: str, price: int, currency: str) -> OpenSpan:
    return OpenSpan(
        attempt_id=attempt.id,
        node=node.index,
        workspace_id=job.workspace_id,
        job_id=job.id,
        job=job.name,
        person=job.created_by,
        attempt=attempt.number,
        machine=node.machine,
        kind=kind,
        slots=len(node.slots),
        price=price,
        currency=currency,
    )


def _enter(session: Session, meter: Meter, span: OpenSpan, pieces: Iterable[Piece]) -> None:
    for start_ms, end_ms in pieces:
        head, slot_ms = _head(session, meter), span.slots * (end_ms - start_ms)
        held: dict[str, Any] = {name: getattr(span, name) for name in _HELD}
        entry = LedgerEntry(
            seq=head.seq + 1,
            previous=head.hash,
            attempt_id=span.attempt_id,
            node=span.node,
            start_ms=start_ms,
            end_ms=end_ms,
            slot_ms=slot_ms,
            cost=cost_of(slot_ms, span.price),
            hash="",
            **held,
        )
        entry.hash = rules.entry_hash(entry)
        session.add(entry)
        head.seq, head.hash = entry.seq, entry.hash
        session.flush()


def _head(session: Session, meter: Meter) -> LedgerHead:
    head = session.get(LedgerHead, 1)
    if head is None:
        head = LedgerHead(id=1, seq=0, hash=rules.FIRST)
        _note_clock(head, meter)
        session.add(head)
        session.flush()
    return head


def _note_clock(head: LedgerHead, meter: Meter) -> None:
    head.boot_id, head.boot_ms, head.at_ms = meter.reading()


def _so_far(span: OpenSpan, meter: Meter) -> Interval:
    interval, at_ms = Interval(span.start_ms, span.heard_ms), meter.heard_ms(span.attempt_id, span.node)
    return interval if at_ms is None else rules.heard(interval, at_ms)


def _set(span: OpenSpan, interval: Interval) -> None:
    span.start_ms, span.heard_ms = interval.start_ms, interval.heard_ms


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)
