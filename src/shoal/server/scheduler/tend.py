"""Care of running jobs beside the watchdog: a look at those that stand still, an end for those that hang, more nodes for those that want them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Protocol

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from shoal.core.schema import utcnow
from shoal.core.states import AttemptState, NodeState
from shoal.server import stalls
from shoal.server.context import Context
from shoal.server.models.artifacts import Checkpoint, holds_state
from shoal.server.models.jobs import Attempt, Job
from shoal.server.services import attempts, stacks
from shoal.server.services.events import tell
from shoal.server.services.jobs import request_preempt

SAVE = "save"
_FRESH = timedelta(seconds=60)
"""With an older checkpoint, too much would have to be done again: the next one is waited for."""
_ASK_AGAIN = timedelta(minutes=5)


class OpenNode(Protocol):
    @property
    def job_id(self) -> str: ...
    @property
    def attempt_id(self) -> str: ...
    @property
    def index(self) -> int: ...
    @property
    def over(self) -> bool: ...
    @property
    def state(self) -> NodeState: ...


class Tending:
    """One per scheduler. What it remembers is told again after a restart of the server."""

    def __init__(self, ctx: Context):
        self._ctx = ctx
        self._looked_at: set[str] = set()
        """Attempts whose stacks were gathered since they last showed progress."""
        self._asked: dict[str, datetime] = {}
        """Attempt → when it was asked to save, to grow."""
        self._own_limits: dict[str, int | None] = {}
        """Attempt → the stall timeout its job was given."""

    def watch(self, nodes: Iterable[OpenNode]) -> None:
        """Gather the stacks of jobs that have shown no progress for long, once each time; end those that surely hang."""
        states: dict[str, set[NodeState]] = {}
        gangs: dict[str, list[OpenNode]] = {}
        for node in nodes:
            states.setdefault(node.attempt_id, set()).add(node.state)
            gangs.setdefault(node.attempt_id, []).append(node)
        orders, patience = self._ctx.orders, self._ctx.settings.stall_s
        for kept in (orders, self._ctx.stalls, self._ctx.attached, self._ctx.labs):
            kept.keep_only(states)
        self._looked_at &= states.keys()
        self._asked = {attempt: at for attempt, at in self._asked.items() if attempt in states}
        self._own_limits = {attempt: own for attempt, own in self._own_limits.items() if attempt in states}
        for attempt_id, found in states.items():
            if found != {NodeState.RUNNING}:
                orders.sign(attempt_id)
            quiet_s = orders.quiet_s(attempt_id)
            if not patience or quiet_s < patience:
                self._looked_at.discard(attempt_id)
            elif attempt_id not in self._looked_at:
                self._looked_at.add(attempt_id)
                stacks.ask_of_stalled(self._ctx, attempt_id, quiet_s)
                self._ctx.stalls.asked(attempt_id)
            self._end_hung(attempt_id, gangs[attempt_id], quiet_s)

    def _end_hung(self, attempt_id: str, gang: list[OpenNode], quiet_s: float) -> None:
        """Look at a quiet attempt now and then, and end it once it is certain that it hangs."""
        ctx, own_s = self._ctx, self._own_limit(gang[0])
        allowed = stalls.limits(own_s, ctx.settings.stall_timeout_s)
        if quiet_s < min(stalls.LOOK_AFTER_S, own_s or stalls.LOOK_AFTER_S) or any(node.over for node in gang):
            ctx.stalls.forget(attempt_id)
            return
        # Somebody who is in there may hold a rank in a debugger, and knows best.
        is_visited = ctx.labs.of_attempt(attempt_id) or any(ctx.attached.known(attempt_id, n.index) for n in gang)
        if allowed is None or is_visited:
            return
        with ctx.db.read() as session:
            job = session.get_one(Job, gang[0].job_id)
        world_size, reports_steps = len(gang) * int(job.spec["accels"]), job.progress is not None
        seen = ctx.stalls.seen(attempt_id)
        why = stalls.verdict(seen, world_size=world_size, quiet_s=quiet_s, limits=allowed, reports_steps=reports_steps)
        if why is not None:
            ctx.db.write(lambda session: attempts.give_up(session, attempt_id, why))
            ctx.live.job_changed(job.id)
        elif ctx.settings.stall_s and (world_size > 1 or reports_steps) and ctx.stalls.is_due(attempt_id, quiet_s):
            stacks.probe(ctx, attempt_id)

    def _own_limit(self, node: OpenNode) -> int | None:
        """Return what its job says; that stays while it runs, and is asked for with every pass."""
        if node.attempt_id not in self._own_limits:
            with self._ctx.db.read() as session:
                spec = session.get_one(Job, node.job_id).spec
            self._own_limits[node.attempt_id] = spec.get("stall_timeout_s")
        return self._own_limits[node.attempt_id]

    def grow(self, grows: Mapping[str, int]) -> None:
        """Have them save; the first whose checkpoint has come starts again with more nodes."""
        for job_id, nodes in grows.items():
            with self._ctx.db.read() as session:
                attempt, saved = _standing(session, job_id)
            if attempt is None:
                continue
            now, asked = utcnow(), self._asked.get(attempt.id)
            if asked and saved and saved > asked and now - saved <= _FRESH:
                self._start_again(job_id, f"saved, to go on with {nodes} nodes instead of {attempt.num_nodes}")
                return
            if asked is None:
                self._tell(job_id, attempt.number, f"there is room for {nodes} nodes: it grows at its next checkpoint")
            if asked is None or now - asked > _ASK_AGAIN:
                self._asked[attempt.id] = now
                self._ctx.orders.ask(attempt.id, SAVE)

    def _tell(self, job_id: str, attempt: int, text: str) -> None:
        def work(session: Session) -> None:
            tell(session, session.get_one(Job, job_id), "growing", text, attempt=attempt)

        self._ctx.db.write(work)
        self._ctx.live.job_changed(job_id)

    def _start_again(self, job_id: str, why: str) -> None:
        if self._ctx.db.write(lambda session: request_preempt(session, session.get_one(Job, job_id), why)):
            self._ctx.live.job_changed(job_id)


def _standing(session: Session, job_id: str) -> tuple[Attempt | None, datetime | None]:
    """Its attempt that runs, and when that has last saved."""
    running = select(Attempt).where(Attempt.job_id == job_id, Attempt.state == AttemptState.RUNNING.value)
    attempt = session.scalars(running).first()
    if attempt is None:
        return None, None
    newest = select(func.max(Checkpoint.created_at)).where(Checkpoint.job_id == job_id, holds_state())
    return attempt, session.scalar(newest.where(Checkpoint.attempt == attempt.number))
