"""Usage and costs, read from the ledger and from the spans that are still open."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from shoal.core.billing import PricesView, UsageBy, UsageRow, UsageView
from shoal.core.model_prices import parse_prices
from shoal.core.money import KINDS, MILLION, cost_of
from shoal.server.billing.usage_clock import UsageClock
from shoal.server.context import Context
from shoal.server.db import in_parts
from shoal.server.models.ledger import LedgerEntry, OpenSpan
from shoal.server.models.workspaces import Member, Workspace
from shoal.server.policy import Principal

DAY_MS = 86_400_000


class Used(NamedTuple):
    """Period in which one node held slots."""

    workspace_id: str
    job_id: str
    job: str
    person: str
    slots: int
    start_ms: int
    end_ms: int
    price: int
    currency: str
    cost: int
    """Cost in millionths of the currency."""

    def between(self, start_ms: int, end_ms: int) -> Used | None:
        """Return the part between two moments, or None."""
        start, end = max(self.start_ms, start_ms), min(self.end_ms, end_ms)
        if start >= end:
            return None
        whole = (start, end) == (self.start_ms, self.end_ms)
        cost = self.cost if whole else cost_of(self.slots * (end - start), self.price)
        return self._replace(start_ms=start, end_ms=end, cost=cost)

    @property
    def slot_s(self) -> float:
        return self.slots * (self.end_ms - self.start_ms) / 1000


def prices(ctx: Context) -> PricesView:
    told = {kind: getattr(ctx.settings, f"price_{kind}") for kind in KINDS}
    return PricesView(currency=ctx.settings.currency, prices=told, models=parse_prices(ctx.settings.price_models))


def usage(
    ctx: Context,
    workspaces: Collection[str] | None,
    *,
    by: UsageBy,
    since: datetime | None = None,
    until: datetime | None = None,
) -> UsageView:
    """Return the usage of these workspaces, or of all (None). Days are in UTC; a job's use is split at midnight."""
    first, last = _ms(since, 0), _ms(until, 1 << 62)
    with ctx.db.read() as session:
        names = {row.id: row.name for row in session.execute(select(Workspace.id, Workspace.name))}
        parts = [p for u in used(session, ctx.usage_clock, workspaces, since_ms=first) if (p := u.between(first, last))]
    return UsageView(
        by=by,
        since=since,
        until=until,
        rows=_summed(parts, by, names),
        slot_seconds=round(sum(p.slot_s for p in parts), 3),
        costs=costs(parts),
    )


def costs(parts: Iterable[Used]) -> dict[str, float]:
    """Return currency → cost of all parts that had a price."""
    found: dict[str, int] = {}
    for part in parts:
        if part.price:
            found[part.currency] = found.get(part.currency, 0) + part.cost
    return {currency: micros / MILLION for currency, micros in sorted(found.items())}


@dataclass(slots=True)
class Total:
    """Sum of slot-seconds, and of costs by currency."""

    slot_s: float = 0.0
    costs: dict[str, float] = field(default_factory=dict)

    def add(self, slot_s: float, price: int, currency: str, cost: int) -> None:
        self.slot_s += slot_s
        if price:
            self.costs[currency] = self.costs.pop(currency, 0.0) + cost / MILLION


def totals(session: Session, usage_clock: UsageClock | None, workspaces: Collection[str]) -> dict[str, Total]:
    """Return the total of each workspace since the beginning; summed by the database, as there may be many entries."""
    found = {workspace: Total() for workspace in workspaces}
    held = (LedgerEntry.workspace_id, LedgerEntry.currency)
    sums = select(*held, func.sum(LedgerEntry.slot_ms), func.max(LedgerEntry.price), func.sum(LedgerEntry.cost))
    for workspace, currency, slot_ms, price, cost in session.execute(
        sums.where(LedgerEntry.workspace_id.in_(workspaces)).group_by(*held)
    ):
        found[workspace].add(slot_ms / 1000, price, currency, cost)
    for part in _open(session, select(OpenSpan).where(OpenSpan.workspace_id.in_(workspaces)), usage_clock):
        found[part.workspace_id].add(part.slot_s, part.price, part.currency, part.cost)
    return found


def used(
    session: Session, usage_clock: UsageClock | None, workspaces: Collection[str] | None, *, since_ms: int = 0
) -> Iterator[Used]:
    """Yield all entries that ended after `since_ms`, and the open spans up to their last report."""
    entered, open_ = select(LedgerEntry).where(LedgerEntry.end_ms > since_ms), select(OpenSpan)
    if workspaces is not None:
        entered = entered.where(LedgerEntry.workspace_id.in_(workspaces))
        open_ = open_.where(OpenSpan.workspace_id.in_(workspaces))
    columns = (LedgerEntry.workspace_id, LedgerEntry.job_id, LedgerEntry.job, LedgerEntry.person, LedgerEntry.slots,
               LedgerEntry.start_ms, LedgerEntry.end_ms, LedgerEntry.price, LedgerEntry.currency, LedgerEntry.cost)  # fmt: skip
    for row in session.execute(entered.with_only_columns(*columns).order_by(LedgerEntry.seq)):
        yield Used._make(row)
    yield from _open(session, open_, usage_clock)


def of_jobs(session: Session, job_ids: Collection[str]) -> Total:
    """Return the total of these jobs so far, open spans included; the currency used last comes last."""
    total = Total()
    sums = select(
        LedgerEntry.currency, func.max(LedgerEntry.price), func.sum(LedgerEntry.slot_ms), func.sum(LedgerEntry.cost)
    )
    for ids in in_parts(job_ids):
        mine = LedgerEntry.job_id.in_(ids)
        grouped = sums.where(mine).group_by(LedgerEntry.currency).order_by(func.max(LedgerEntry.seq))
        for currency, price, slot_ms, cost in session.execute(grouped):
            total.add(slot_ms / 1000, price, currency, cost)
        for part in _open(session, select(OpenSpan).where(OpenSpan.job_id.in_(ids)), None):
            total.add(part.slot_s, part.price, part.currency, part.cost)
    return total


def slot_seconds_and_cost(session: Session, job_ids: Collection[str]) -> tuple[float, float | None]:
    """Return the slot-seconds and cost of jobs. The cost is None without prices; of several currencies the newest counts."""
    total = of_jobs(session, job_ids)
    return total.slot_s, list(total.costs.values())[-1] if total.costs else None


def own_workspaces(ctx: Context, principal: Principal) -> list[str]:
    with ctx.db.read() as session:
        return list(session.scalars(select(Member.workspace_id).where(Member.user_id == principal.user_id)))


def _open(session: Session, query: Select[Any], usage_clock: UsageClock | None) -> Iterator[Used]:
    for span in session.scalars(query):
        heard_ms = usage_clock.last_report_ms(span.attempt_id, span.node) if usage_clock else None
        start_ms = span.start_ms if span.start_ms is not None else heard_ms
        end_ms = max(span.heard_ms or 0, heard_ms or 0)
        if start_ms is not None and start_ms < end_ms:
            cost = cost_of(span.slots * (end_ms - start_ms), span.price)
            yield Used(span.workspace_id, span.job_id, span.job, span.person, span.slots, start_ms, end_ms, span.price,
                       span.currency, cost)  # fmt: skip


def _summed(parts: list[Used], by: UsageBy, names: dict[str, str]) -> list[UsageRow]:
    """Return the rows of a usage view: days in order, everything else with the largest use first."""
    found: dict[tuple[str, str, str], list[Used]] = {}
    for part in parts:
        for ident, key, piece in _keyed(part, by, names):
            found.setdefault((ident, key, part.currency if part.price else ""), []).append(piece)
    rows = [
        UsageRow(
            key=key,
            id=ident if by in ("job", "workspace") else None,
            jobs=len({p.job_id for p in group}),
            slot_seconds=round(sum(p.slot_s for p in group), 3),
            cost=sum(p.cost for p in group) / MILLION if currency else None,
            currency=currency or None,
        )
        for (ident, key, currency), group in found.items()
    ]
    return sorted(rows, key=lambda r: r.key if by == "day" else (-r.slot_seconds, r.key))


def _keyed(part: Used, by: UsageBy, names: dict[str, str]) -> Iterator[tuple[str, str, Used]]:
    if by == "job":
        yield part.job_id, part.job, part
    elif by == "workspace":
        yield part.workspace_id, names.get(part.workspace_id, part.workspace_id), part
    elif by == "person":
        yield part.person, part.person, part
    else:
        yield from ((day, day, piece) for day, piece in by_day(part))


def by_day(part: Used) -> Iterator[tuple[str, Used]]:
    at = part.start_ms
    while at < part.end_ms:
        midnight = (at // DAY_MS + 1) * DAY_MS
        if (piece := part.between(at, midnight)) is not None:
            yield day_of(at), piece
        at = midnight


def day_of(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).date().isoformat()


def _ms(moment: datetime | None, default: int) -> int:
    return default if moment is None else round(moment.timestamp() * 1000)
