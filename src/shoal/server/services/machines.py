"""What the pool offers and what of it is in use."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import select

from shoal.core.jobs import CapacityView, MachineView
from shoal.core.states import AttemptState, NodeState
from shoal.server.context import Context
from shoal.server.models.jobs import Attempt, Node


def capacity(ctx: Context) -> CapacityView:
    used: Counter[str] = Counter()
    with ctx.db.read() as session:
        rows = session.execute(
            select(Node.machine, Node.slots, Node.state)
            .join(Attempt, Attempt.id == Node.attempt_id)
            .where(Attempt.state != AttemptState.ENDED.value)
        )
        for machine, slots, state in rows:
            used[machine] += 0 if NodeState(state).is_terminal else len(slots)
    return CapacityView(
        machines=[
            MachineView(
                name=m.name,
                kind=m.kind,
                slots_total=m.slots,
                slots_free=m.slots - used[m.name],
                state=m.state,
                problems=m.problems,
            )
            for m in ctx.engine.capacity()
        ]
    )
