"""What the pool offers and what of it is in use."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.jobs import CapacityView, MachineView
from shoal.core.states import AttemptState, NodeState
from shoal.server.context import Context
from shoal.server.models.jobs import Attempt, Node


def in_use(session: Session) -> Counter[str]:
    """Machine → slots its nodes hold."""
    used: Counter[str] = Counter()
    rows = session.execute(
        select(Node.machine, Node.slots, Node.state)
        .join(Attempt, Attempt.id == Node.attempt_id)
        .where(Attempt.state != AttemptState.ENDED.value)
    )
    for machine, slots, state in rows:
        used[machine] += 0 if NodeState(state).is_terminal else len(slots)
    return used


def capacity(ctx: Context) -> CapacityView:
    with ctx.db.read() as session:
        used = in_use(session)
    return CapacityView(
        machines=[
            MachineView(
                name=m.name,
                kind=m.kind,
                slots_total=m.slots,
                slots_free=max(0, m.slots - used[m.name]),
                state=m.state,
                problems=m.problems,
            )
            for m in ctx.engine.capacity()
        ]
    )
