"""Writing of the ledger, in the same transaction that opens, extends or ends a node's hold on its slots.

All writers run in the database's one writer thread, so that the chain has no forks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.model_prices import parse_prices, price_of_model
from shoal.core.money import KINDS, MILLION, cost_of
from shoal.core.settings import ServerSettings
from shoal.core.states import AttemptState, NodeState
from shoal.engines.base import Machine
from shoal.server.billing import ledger_rules as rules
from shoal.server.billing.ledger_rules import Interval, Piece
from shoal.server.billing.usage_clock import UsageClock
from shoal.server.context import Context
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.models.ledger import LedgerEntry, LedgerHead, OpenSpan

_HELD = ("workspace_id", "job_id", "job", "person", "attempt", "machine", "kind", "slots", "price", "currency")


def price_of(settings: ServerSettings, kind: str, model: str = "") -> int:
    """Return the price of one slot for an hour, in millionths of the currency; 0 for kinds and models without a price."""
    own = price_of_model(parse_prices(settings.price_models), model) if settings.price_models else None
    if own is not None:
        return round(own * MILLION)
    return round(getattr(settings, f"price_{kind}") * MILLION) if kind in KINDS else 0


def open_nodes(
    session: Session, usage_clock: UsageClock, attempt: Attempt, machines: Iterable[Machine], settings: ServerSettings
) -> None:
    """Open a span for each node of an attempt. The price is fixed now; time is charged from the agent's first report."""
    store_clock(session, usage_clock)
    there = {machine.name: machine for machine in machines}
    job = session.get_one(Job, attempt.job_id)
    for node in session.scalars(select(Node).where(Node.attempt_id == attempt.id)):
        machine = there.get(node.machine)
        kind, devices = (machine.kind, machine.inventory) if machine else ("cpu", ())
        model = next((devices[slot].model for slot in node.slots if slot < len(devices)), "")
        session.add(_span(job, attempt, node, kind, price_of(settings, kind, model), settings.currency))
    session.flush()


def store_clock(session: Session, usage_clock: UsageClock) -> None:
    """Store the ledger's clock before anything is measured with it; set it to the time of day while no span is open."""
    if session.scalar(select(OpenSpan.attempt_id).limit(1)) is None:
        usage_clock.set_by_wall()
    _note_clock(_head(session, usage_clock), usage_clock)


def record_message(session: Session, usage_clock: UsageClock, attempt_id: str, node: int) -> None:
    """Extend a node's span to the last time its agent reported, as part of the caller's transaction."""
    if (span := session.get(OpenSpan, (attempt_id, node))) is not None:
        _set(span, _so_far(span, usage_clock))


def end_node(session: Session, usage_clock: UsageClock, attempt_id: str, node: int, *, timeout_s: float | None) -> None:
    """Close a node's span and enter the rest of it.

    `timeout_s`: the node timeout if the agent reported the end. The time of that report is charged if the report before it is
    not older than the timeout. None if the node was lost: then it is charged up to its last report.
    """
    span = session.get(OpenSpan, (attempt_id, node))
    if span is None:
        return
    interval = _so_far(span, usage_clock)
    pieces = (
        rules.lost(interval)
        if timeout_s is None
        else rules.ended(interval, usage_clock.now_ms, round(timeout_s * 1000))
    )
    _enter(session, usage_clock, span, pieces)
    session.delete(span)
    session.flush()


def renew(session: Session, usage_clock: UsageClock) -> None:
    """Store the latest reports of all open spans, and enter their complete hours."""
    spans = session.scalars(select(OpenSpan)).all()
    for span in spans:
        interval, pieces = rules.hours(_so_far(span, usage_clock))
        _enter(session, usage_clock, span, pieces)
        _set(span, interval)
    usage_clock.keep_only({(span.attempt_id, span.node) for span in spans})
    _note_clock(_head(session, usage_clock), usage_clock)
    session.flush()


def begin(ctx: Context) -> None:
    """Continue the ledger's clock at the server's start.

    A database from before the ledger gets entries for its past attempts, without prices.
    """
    usage_clock, kinds = ctx.usage_clock, {machine.name: machine.kind for machine in ctx.engine.capacity()}

    def work(session: Session) -> None:
        head = session.get(LedgerHead, 1)
        if head is None:
            _import_history(session, usage_clock, kinds, ctx.settings.currency)
        else:
            usage_clock.resume(head.boot_id, head.boot_ms, head.at_ms)
        store_clock(session, usage_clock)

    ctx.db.write(work)


def _import_history(session: Session, usage_clock: UsageClock, kinds: Mapping[str, str], currency: str) -> None:
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
            _enter(session, usage_clock, span, rules.lost(Interval(start_ms, end_ms)))
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


def _enter(session: Session, usage_clock: UsageClock, span: OpenSpan, pieces: Iterable[Piece]) -> None:
    for start_ms, end_ms in pieces:
        head, slot_ms = _head(session, usage_clock), span.slots * (end_ms - start_ms)
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


def _head(session: Session, usage_clock: UsageClock) -> LedgerHead:
    head = session.get(LedgerHead, 1)
    if head is None:
        head = LedgerHead(id=1, seq=0, hash=rules.FIRST)
        _note_clock(head, usage_clock)
        session.add(head)
        session.flush()
    return head


def _note_clock(head: LedgerHead, usage_clock: UsageClock) -> None:
    head.boot_id, head.boot_ms, head.at_ms = usage_clock.reading()


def _so_far(span: OpenSpan, usage_clock: UsageClock) -> Interval:
    interval, at_ms = Interval(span.start_ms, span.heard_ms), usage_clock.last_report_ms(span.attempt_id, span.node)
    return interval if at_ms is None else rules.after_report(interval, at_ms)


def _set(span: OpenSpan, interval: Interval) -> None:
    span.start_ms, span.heard_ms = interval.start_ms, interval.heard_ms


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)
