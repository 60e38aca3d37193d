"""Swarm operations for users: create, inspect, stop, resume, delete. `watch.py` starts and ends the coordinators."""

from __future__ import annotations

import socket
from importlib.util import find_spec

from sqlalchemy import delete as sql_delete
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shoal.core.audit import AuditAction
from shoal.core.checkpoints import CheckpointView
from shoal.core.entries import check_entry
from shoal.core.errors import MissingExtra, NameTaken, NotAllowedNow
from shoal.core.ids import new_id
from shoal.core.invitations import new_key
from shoal.core.jobs import JobSpec
from shoal.core.schema import utcnow
from shoal.core.swarm import SwarmSpec
from shoal.core.swarm_views import (
    InvitationCreate,
    PeerView,
    RoundView,
    SwarmCreated,
    SwarmState,
    SwarmSummary,
    SwarmView,
)
from shoal.server import lookup
from shoal.server.artifacts import checkpoints
from shoal.server.audit.record import record_action
from shoal.server.context import Context
from shoal.server.jobs import service as job_service
from shoal.server.models.swarm import Swarm, SwarmPeer, SwarmRound
from shoal.server.policy import Access
from shoal.server.swarms import invitations as swarm_invitations
from shoal.server.swarms import swarm_rows
from shoal.server.swarms import views as swarm_views
from shoal.server.swarms.peers import changed
from shoal.server.swarms.process import CoordinatorProcess


def create(ctx: Context, access: Access, spec: SwarmSpec) -> SwarmCreated:
    """Create a swarm with a first invitation. Its coordinator starts immediately."""
    if find_spec("hivemind") is None:
        raise MissingExtra(
            "Swarms are not available on this server: a package is missing.",
            hint="On the server: pip install 'shoal-train[swarm]'",
        )
    job = JobSpec(name=spec.name, entry=spec.entry, source_id=spec.source_id, datasets=spec.datasets, env=spec.env)
    with ctx.db.read() as session:
        source = lookup.source(session, access, spec.source_id)
        inputs = job_service.inputs(session, access, job)
    check_entry(spec.entry[0].removeprefix("./"), [f.path for f in ctx.store.get_manifest(source.manifest_id).files])
    swarm_id, (private, public) = new_id("swm"), new_key()
    sealed, port = swarm_rows.seal_key(ctx, swarm_id, private), spec.port or _free_port()

    def work(session: Session) -> None:
        session.add(
            Swarm(
                id=swarm_id,
                workspace_id=access.workspace_id,
                name=spec.name,
                spec=spec.model_dump(mode="json"),
                source_id=source.id,
                inputs=inputs,
                created_by=access.principal.email,
                state=SwarmState.RUNNING.value,
                generation=1,
                owner_key=public,
                sealed_key=sealed,
                port=port,
                addresses=[],
                created_at=utcnow(),
            )
        )
        try:
            session.flush()
        except IntegrityError:
            raise NameTaken(
                f"There is already a swarm '{spec.name}' in workspace '{access.workspace}'.",
                hint=f"choose another name, or: shoal swarm delete {spec.name}",
            ) from None
        swarm_rows.record_event(session, swarm_id, "created", f"created by {access.principal.email}")
        record_action(session, AuditAction.SWARM_CREATE, spec.name, swarm_id, workspace=access)

    ctx.db.write(work)
    ctx.coordinators.wake.set()
    invitation = swarm_invitations.create(ctx, access, swarm_id, InvitationCreate(name="first"))
    return SwarmCreated(swarm=get(ctx, access, swarm_id), invitation=invitation)


def summaries(ctx: Context, access: Access, *, limit: int = 100) -> list[SwarmSummary]:
    """Return the swarms of the workspace, newest first."""
    query = select(Swarm).where(Swarm.workspace_id == access.workspace_id).order_by(Swarm.id.desc()).limit(limit)
    with ctx.db.read() as session:
        found = session.scalars(query).all()
        there = swarm_rows.present_in(session, [swarm.id for swarm in found])
        return [swarm_views.summary(swarm, there[swarm.id]) for swarm in found]


def get(ctx: Context, access: Access, name_or_id: str) -> SwarmView:
    with ctx.db.read() as session:
        swarm = lookup.swarm(session, access, name_or_id)
        return swarm_views.view(session, swarm, access.workspace, ctx.coordinators.status(swarm.id))


def peers(ctx: Context, access: Access, name_or_id: str) -> list[PeerView]:
    with ctx.db.read() as session:
        return swarm_views.peers(session, lookup.swarm(session, access, name_or_id).id)


def rounds(ctx: Context, access: Access, name_or_id: str, *, after: int = -1, limit: int = 1000) -> list[RoundView]:
    with ctx.db.read() as session:
        swarm_id = lookup.swarm(session, access, name_or_id).id
        return swarm_views.rounds(session, swarm_id, after=after, limit=limit)


def list_checkpoints(ctx: Context, access: Access, name_or_id: str) -> list[CheckpointView]:
    """Return the checkpoints of a swarm, oldest first."""
    with ctx.db.read() as session:
        kept = swarm_rows.kept(session, lookup.swarm(session, access, name_or_id).id)
        return [checkpoints.view(row) for _, row in reversed(kept)]


def stop(ctx: Context, access: Access, name_or_id: str) -> SwarmView:
    """Stop a swarm: its coordinator saves a last checkpoint and tells all peers to leave. Idempotent."""

    def work(session: Session) -> str:
        swarm = lookup.swarm(session, access, name_or_id)
        if swarm.state == SwarmState.RUNNING:
            swarm.state, swarm.stopped_at = SwarmState.STOPPED.value, utcnow()
            swarm.reason = f"stopped by {access.principal.email}"
            swarm_rows.record_event(session, swarm.id, "stopped", swarm.reason)
            record_action(session, AuditAction.SWARM_STOP, swarm.name, swarm.id, workspace=access)
        return swarm.id

    return _changed(ctx, access, ctx.db.write(work, essential=True))


def resume(ctx: Context, access: Access, name_or_id: str, *, force: bool = False) -> SwarmView:
    """Resume a swarm from its newest checkpoint as a new run, separate from peers that still train in the old one.

    Such peers learn of the new run with their next heartbeat, and join it. `force` permits this while peers are connected.
    """

    def work(session: Session) -> str:
        swarm = lookup.swarm(session, access, name_or_id)
        there = swarm_rows.present(session, swarm.id)
        if swarm.state == SwarmState.RUNNING and there and not force:
            peers = f"{there} peer{'s' if there != 1 else ''}"
            raise NotAllowedNow(
                f"Swarm '{swarm.name}' is running: {peers} sent a heartbeat within the last {swarm_rows.SILENCE_S:.0f} s. "
                "A resume would set them back to the newest checkpoint, too.",
                hint=f"shoal swarm resume {swarm.name} --force",
            )
        found = swarm_rows.newest(session, swarm.id)
        _forget_rounds(session, swarm, found[0].round if found else -1)
        swarm.state, swarm.reason, swarm.stopped_at = SwarmState.RUNNING.value, None, None
        swarm.generation += 1
        swarm.addresses = []
        where = f"from checkpoint {found[1].name}" if found else "from the beginning: it has no checkpoint"
        swarm_rows.record_event(session, swarm.id, "resumed", f"resumed by {access.principal.email}, {where}")
        record_action(session, AuditAction.SWARM_RESUME, swarm.name, swarm.id, workspace=access)
        return swarm.id

    return _changed(ctx, access, ctx.db.write(work))


def delete(ctx: Context, access: Access, name_or_id: str) -> None:
    """Delete a stopped swarm. Its checkpoints stay in the workspace."""

    def work(session: Session) -> str:
        swarm = lookup.swarm(session, access, name_or_id)
        if swarm.state == SwarmState.RUNNING:
            raise NotAllowedNow(
                f"Swarm '{swarm.name}' is running; only a stopped swarm can be deleted.",
                hint=f"shoal swarm stop {swarm.name}",
            )
        record_action(session, AuditAction.SWARM_DELETE, swarm.name, swarm.id, workspace=access)
        session.execute(sql_delete(SwarmPeer).where(SwarmPeer.swarm_id == swarm.id))
        session.execute(sql_delete(Swarm).where(Swarm.id == swarm.id))
        return swarm.id

    swarm_id = ctx.db.write(work, essential=True)
    CoordinatorProcess(swarm_rows.folder(ctx, swarm_id)).remove()
    ctx.coordinators.forget(swarm_id)
    ctx.coordinators.wake.set()


def _forget_rounds(session: Session, swarm: Swarm, last: int) -> None:
    """Delete the rounds after the checkpoint: they are trained again."""
    session.execute(sql_delete(SwarmRound).where(SwarmRound.swarm_id == swarm.id, SwarmRound.round > last))
    if swarm.progress:
        swarm.progress = {**swarm.progress, "alive": 0, "performance": None, "round": max(last, 0)}


def _changed(ctx: Context, access: Access, swarm_id: str) -> SwarmView:
    changed(ctx, swarm_id)
    return get(ctx, access, swarm_id)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
