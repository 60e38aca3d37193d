"""Care for running jobs besides the watchdog: collect stacks of stalled jobs, end jobs that hang, grow those that want it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Protocol

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from shoal.core.commands import Command
from shoal.core.schema import utcnow
from shoal.core.states import AttemptState, NodeState
from shoal.server.context import Context
from shoal.server.jobs import attempts, stacks, stalls
from shoal.server.jobs.events import record_event
from shoal.server.jobs.service import request_preempt
from shoal.server.models.checkpoints import Checkpoint, holds_state
from shoal.server.models.jobs import Attempt, Event, Job

_FRESH = timedelta(seconds=60)
"""Maximum age of the checkpoint with which a job restarts to grow; with an older one, too much work would be repeated."""
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


class RunningJobChecks:
    """State of this care, one per scheduler and used by its thread only. After a restart of the server it builds up again."""

    def __init__(self, ctx: Context):
        self._ctx = ctx
        self._looked_at: set[str] = set()
        """Attempts whose stacks were collected since they last showed progress."""
        self._asked: dict[str, datetime] = {}
        """Attempt → time at which it was asked to save in order to grow."""
        self._own_limits: dict[str, int | None] = {}
        """Attempt → the stall timeout in its job's specification; 0 if the job asked only to be reported."""

    def watch(self, nodes: Iterable[OpenNode]) -> None:
        """Collect the stacks of jobs that have shown no progress for long, once per stall; end those that certainly hang."""
        states: dict[str, set[NodeState]] = {}
        gangs: dict[str, list[OpenNode]] = {}
        for node in nodes:
            states.setdefault(node.attempt_id, set()).add(node.state)
            gangs.setdefault(node.attempt_id, []).append(node)
        commands, patience = self._ctx.commands, self._ctx.settings.stall_s
        for kept in (commands, self._ctx.stalls, self._ctx.attached, self._ctx.labs):
            kept.keep_only(states)
        self._looked_at &= states.keys()
        self._asked = {attempt: at for attempt, at in self._asked.items() if attempt in states}
        self._own_limits = {attempt: own for attempt, own in self._own_limits.items() if attempt in states}
        for attempt_id, found in states.items():
            if found != {NodeState.RUNNING}:
                commands.reset(attempt_id)
            quiet_s = commands.quiet_s(attempt_id)
            if not patience or quiet_s < patience:
                self._looked_at.discard(attempt_id)
            elif attempt_id not in self._looked_at:
                self._looked_at.add(attempt_id)
                stacks.request_of_stalled(self._ctx, attempt_id, quiet_s)
                self._ctx.stalls.note_request(attempt_id)
            self._end_hung(attempt_id, gangs[attempt_id], quiet_s)

    def _end_hung(self, attempt_id: str, gang: list[OpenNode], quiet_s: float) -> None:
        """Probe a quiet attempt from time to time, and end it once it certainly hangs."""
        ctx, own_s = self._ctx, self._own_limit(gang[0])
        pause_s = ctx.commands.longest_pause_s(attempt_id)
        allowed = stalls.limits(own_s, ctx.settings.stall_timeout_s, pause_s)
        if quiet_s < min(stalls.LOOK_AFTER_S, own_s or stalls.LOOK_AFTER_S) or any(node.over for node in gang):
            ctx.stalls.forget(attempt_id)
            return
        # A user who is attached may have stopped a rank in a debugger: do not interfere.
        is_visited = ctx.labs.of_attempt(attempt_id) or any(ctx.attached.known(attempt_id, n.index) for n in gang)
        if allowed is None or is_visited:
            return
        with ctx.db.read() as session:
            job = session.get_one(Job, gang[0].job_id)
            if session.scalar(select(Event.seq).where(Event.job_id == job.id, Event.kind == "stalled").limit(1)):
                # It may have been slow after all: the second time nothing but the full time counts.
                allowed = stalls.limits(own_s, ctx.settings.stall_timeout_s) or allowed
        world_size, reports_steps = len(gang) * int(job.spec["accels"]), job.progress is not None
        seen = ctx.stalls.seen(attempt_id)
        why = stalls.verdict(seen, world_size=world_size, quiet_s=quiet_s, limits=allowed, reports_steps=reports_steps)
        if why is not None:
            ctx.db.write(lambda session: attempts.give_up(session, attempt_id, why))
            ctx.live.job_changed(job.id)
        elif ctx.settings.stall_s and (world_size > 1 or reports_steps) and ctx.stalls.is_due(attempt_id, quiet_s):
            stacks.probe(ctx, attempt_id)

    def _own_limit(self, node: OpenNode) -> int | None:
        """Return the stall timeout of the node's job, 0 for one that waits (`on_stall`).

        Cached: it cannot change during an attempt, and every pass needs it.
        """
        if node.attempt_id not in self._own_limits:
            with self._ctx.db.read() as session:
                spec = session.get_one(Job, node.job_id).spec
            waits = spec.get("on_stall") == "wait"
            self._own_limits[node.attempt_id] = 0 if waits else spec.get("stall_timeout_s")
        return self._own_limits[node.attempt_id]

    def grow(self, grows: Mapping[str, int]) -> None:
        """Ask each of these jobs to save; restart the first that has saved with more nodes."""
        for job_id, nodes in grows.items():
            with self._ctx.db.read() as session:
                attempt, saved = _standing(session, job_id)
            if attempt is None:
                continue
            now, asked = utcnow(), self._asked.get(attempt.id)
            if asked and saved and saved > asked and now - saved <= _FRESH:
                self._start_again(job_id, f"saved, to continue with {nodes} nodes instead of {attempt.num_nodes}")
                return
            if asked is None:
                self._record(
                    job_id, attempt.number, f"there is room for {nodes} nodes: it grows at its next checkpoint"
                )
            if asked is None or now - asked > _ASK_AGAIN:
                self._asked[attempt.id] = now
                self._ctx.commands.send(attempt.id, Command.SAVE)

    def _record(self, job_id: str, attempt: int, text: str) -> None:
        def work(session: Session) -> None:
            record_event(session, session.get_one(Job, job_id), "growing", text, attempt=attempt)

        self._ctx.db.write(work)
        self._ctx.live.job_changed(job_id)

    def _start_again(self, job_id: str, why: str) -> None:
        if self._ctx.db.write(lambda session: request_preempt(session, session.get_one(Job, job_id), why)):
            self._ctx.live.job_changed(job_id)


def _standing(session: Session, job_id: str) -> tuple[Attempt | None, datetime | None]:
    """Return the running attempt of a job, and the time of its newest checkpoint that a job can resume from."""
    running = select(Attempt).where(Attempt.job_id == job_id, Attempt.state == AttemptState.RUNNING.value)
    attempt = session.scalars(running).first()
    if attempt is None:
        return None, None
    newest = select(func.max(Checkpoint.created_at)).where(Checkpoint.job_id == job_id, holds_state())
    return attempt, session.scalar(newest.where(Checkpoint.attempt == attempt.number))
