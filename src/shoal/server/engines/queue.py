"""Jobs that moved from the server's queue to the queue of an engine: why they wait there, and where they were placed."""

from __future__ import annotations

from itertools import count, islice

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.states import AttemptState, JobState
from shoal.server.context import Context
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.models.ledger import OpenSpan
from shoal.server.scheduler.kinds import zone


def why(ctx: Context, session: Session, job: Job) -> str | None:
    """Return why a job waits in its engine's queue, as text for users; None if it does not wait there."""
    if job.state != JobState.STARTING:
        return None
    newest = select(Attempt.id).where(Attempt.job_id == job.id).order_by(Attempt.number.desc()).limit(1)
    attempt_id = session.scalar(newest)
    return ctx.engine.waits(attempt_id) if attempt_id else None


def move_to_actual(session: Session, node: Node, machine: str | None) -> None:
    """Move a node to the machine that its engine chose instead of the planned one, so that its slots are counted there."""
    if machine is None or machine == node.machine or not zone(machine) or zone(machine) != zone(node.machine):
        return
    there = (
        select(Node.slots)
        .join(Attempt, Attempt.id == Node.attempt_id)
        .where(Node.machine == machine, Attempt.state != AttemptState.ENDED.value)
    )
    used = {slot for slots in session.scalars(there) for slot in slots}
    free = (slot for slot in count() if slot not in used)
    node.machine, node.slots = machine, list(islice(free, len(node.slots)))
    if (span := session.get(OpenSpan, (node.attempt_id, node.index))) is not None:
        span.machine = machine
