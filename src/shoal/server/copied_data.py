"""First start on a copy of a data directory: jobs that ran when it was copied belong to the original, which may still run."""

from __future__ import annotations

import logging

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.pool import Problem
from shoal.core.states import AttemptState
from shoal.server.context import Context
from shoal.server.jobs import attempts
from shoal.server.models.jobs import Attempt
from shoal.server.models.pool import PoolRow
from shoal.server.pool import pool_rows

logger = logging.getLogger(__name__)
_REASON = "this data directory was copied while it ran; that attempt belongs to the original server"


def disown(ctx: Context) -> None:
    """End open attempts without contacting their agents, and leave the pool's machines to the original.

    The jobs start again here from their newest checkpoint, under the usual restart rules.
    """
    machines, count = ctx.db.write(_fail_machines), ctx.db.write(lambda session: _end_attempts(ctx, session))
    if count or machines:
        logger.warning("left to the original server: %d running attempts, %d pool machines", count, machines)


def _end_attempts(ctx: Context, session: Session) -> int:
    still_open = select(Attempt).where(Attempt.state != AttemptState.ENDED.value)
    found = list(session.scalars(still_open))
    for attempt in found:
        for node in attempts.nodes_of(session, attempt):
            attempts.node_lost(session, ctx.usage_clock, attempt, node, _REASON)
    return len(found)


def _fail_machines(session: Session) -> int:
    """Mark all machines as failed. A machine belongs to one server: two would keep taking its daemon from each other."""
    problem = Problem(
        text="it belongs to the server this data directory was copied from", fix="Add it again.", is_fatal=True
    )
    rows = list(session.scalars(select(PoolRow).where(PoolRow.state.in_(pool_rows.MEMBERS))))
    for row in rows:
        row.state, row.problems = pool_rows.FAILED, [problem.model_dump()]
    return len(rows)
