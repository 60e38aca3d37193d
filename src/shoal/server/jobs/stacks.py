"""Stacks of a running job's workers: requested from its agents, combined as they arrive, stored as one event per request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.agent.workers.frames import names, place, where
from shoal.core.commands import Command
from shoal.core.errors import Fenced, InvalidSpec, NotAllowedNow, NotFound
from shoal.core.stacks import RankStack, StackGroup, StacksReport, StacksRequested, StacksView
from shoal.core.states import AttemptState
from shoal.server import lookup
from shoal.server.context import Context
from shoal.server.jobs.agent_commands import SentCommand
from shoal.server.jobs.events import record_event
from shoal.server.models.jobs import Attempt, Event, Job
from shoal.server.policy import Access, AgentIdentity

KIND = "stacks"


def request(ctx: Context, access: Access, name_or_id: str) -> StacksRequested:
    """Request the stacks of all workers of a job; the answers arrive within seconds."""
    with ctx.db.read() as session:
        job = lookup.job(session, access, name_or_id)
        attempt = _running(session, job)
    if attempt is None:
        raise NotAllowedNow(
            f"Job '{job.name}' is {job.state}; only a running job has stacks to show.",
            hint=f"shoal training inspect {job.name}",
        )
    return StacksRequested(
        order=ctx.commands.send(attempt.id, Command.STACKS, f"asked for by {access.principal.email}")
    )


def request_of_stalled(ctx: Context, attempt_id: str, quiet_s: float) -> None:
    ctx.commands.send(attempt_id, Command.STACKS, f"no line, metric or step for {quiet_s:.0f} s", is_stall=True)


def probe(ctx: Context, attempt_id: str) -> None:
    """Request the stacks of a quiet attempt for stall detection only; creates no event."""
    ctx.commands.send(attempt_id, Command.STACKS, is_probe=True)


def report(ctx: Context, who: AgentIdentity, found: StacksReport) -> None:
    """Store the stacks of one node. The first node to answer creates the event, the others add to it."""
    command = ctx.commands.answered(found.order, who.attempt_id, who.node)
    if command is None:
        return
    if command.is_probe or command.is_stall:
        _refuse_foreign_of(ctx, who, found.ranks)
        ctx.stalls.note(who.attempt_id, found.ranks)
    if command.is_probe:
        return

    def work(session: Session) -> None:
        attempt = session.get_one(Attempt, who.attempt_id)
        if attempt.fenced:
            raise Fenced()
        job = session.get_one(Job, who.job_id)
        _refuse_foreign(found.ranks, who.node, job.spec["accels"])
        event = _event(session, job.id, command.id)
        if event is None:
            record_event(
                session,
                job,
                KIND,
                command.why,
                attempt=who.attempt,
                data={"order": command.id, "stall": command.is_stall},
            )
            event = _event(session, job.id, command.id)
        if event is not None and who.node not in event.data.get("nodes", []):
            _add(event, command, who.node, attempt.num_nodes, found.ranks)

    ctx.db.write(work)
    ctx.live.job_changed(who.job_id)


def latest(ctx: Context, access: Access, name_or_id: str) -> StacksView:
    with ctx.db.read() as session:
        job = lookup.job(session, access, name_or_id)
        event = next(iter(_events(session, job.id)), None)
        if event is None:
            raise NotFound(
                f"No stacks of job '{job.name}' have been collected yet.", hint=f"shoal training stacks {job.name}"
            )
        return StacksView(
            order=event.data["order"],
            at=event.at,
            attempt=event.attempt or 0,
            text=event.message,
            groups=[StackGroup.model_validate(group) for group in event.data.get("groups", [])],
            complete=len(event.data.get("nodes", [])) == event.data.get("of"),
        )


def stalled(ctx: Context, session: Session, job: Job) -> Event | None:
    """Return the event with the stacks of a stalled job: collected because it made no progress, and none made since."""
    attempt = _running(session, job)
    if attempt is None or not ctx.settings.stall_s or ctx.commands.quiet_s(attempt.id) < ctx.settings.stall_s:
        return None
    return next((e for e in _events(session, job.id) if e.attempt == attempt.number and e.data.get("stall")), None)


def _running(session: Session, job: Job) -> Attempt | None:
    query = select(Attempt).where(Attempt.job_id == job.id, Attempt.state == AttemptState.RUNNING.value)
    return session.scalars(query.order_by(Attempt.number.desc())).first()


def _events(session: Session, job_id: str) -> list[Event]:
    """Return the job's last events with stacks, newest first."""
    query = select(Event).where(Event.job_id == job_id, Event.kind == KIND).order_by(Event.seq.desc())
    return list(session.scalars(query.limit(20)))


def _event(session: Session, job_id: str, command_id: str) -> Event | None:
    return next((e for e in _events(session, job_id) if e.data["order"] == command_id), None)


def _refuse_foreign(ranks: Iterable[RankStack], node: int, accels: int) -> None:
    mine = range(node * accels, (node + 1) * accels)
    for rank in ranks:
        if rank.rank not in mine:
            raise InvalidSpec(f"Rank {rank.rank} is not one of node {node}.")


def _refuse_foreign_of(ctx: Context, who: AgentIdentity, ranks: Iterable[RankStack]) -> None:
    with ctx.db.read() as session:
        _refuse_foreign(ranks, who.node, session.get_one(Job, who.job_id).spec["accels"])


def _add(event: Event, command: SentCommand, node: int, of: int, ranks: Iterable[RankStack]) -> None:
    kept: dict[str, dict[str, Any]] = {g["key"]: dict(g) for g in event.data.get("groups", [])}
    for rank in ranks:
        about = rank.model_dump(mode="json", exclude={"rank", "frames", "stopped", "cpu_s", "moved"})
        key = place(about)
        group = kept.setdefault(key, {"key": key, "ranks": [], "about": about, "frames": rank.frames})
        group["ranks"] = sorted({*group["ranks"], rank.rank})
    groups = sorted(kept.values(), key=lambda g: (-len(g["ranks"]), g["ranks"]))
    for group in groups:
        group["where"] = where(group["about"], len(group["ranks"]))
    event.data = {**event.data, "nodes": [*event.data.get("nodes", []), node], "of": of, "groups": groups}
    event.message = f"{command.why}: " + "; ".join(f"{names(g['ranks'])} {g['where']}" for g in groups)
