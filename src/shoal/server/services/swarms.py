"""Swarms for people: make, look at, stop, go on with, delete. Their keepers are started and ended by `swarm_watch`."""

from __future__ import annotations

import socket
from importlib.util import find_spec

from sqlalchemy import delete as sql_delete
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shoal.core.checkpoints import CheckpointView
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
from shoal.server.context import Context
from shoal.server.models.swarm import Swarm, SwarmPeer, SwarmRound
from shoal.server.policy import Access
from shoal.server.services import checkpoints, find, swarm_invitations, swarm_rows, swarm_views
from shoal.server.services import jobs as job_service
from shoal.server.services.swarm_peers import changed
from shoal.server.services.swarm_process import KeeperProcess


def create(ctx: Context, access: Access, spec: SwarmSpec) -> SwarmCreated:
    """With a first invitation. Its keeper starts at once."""
    if find_spec("hivemind") is None:
        raise MissingExtra(
            "This server cannot keep swarms: it lacks a package.", hint="On the server: pip install 'shoal[swarm]'"
        )
    job = JobSpec(name=spec.name, entry=spec.entry, source_id=spec.source_id, datasets=spec.datasets, env=spec.env)
    with ctx.db.read() as session:
        source = find.source(session, access, spec.source_id)
        inputs = job_service.inputs(session, access, job)
    job_service.check_entry(spec.entry, [f.path for f in ctx.store.get_manifest(source.manifest_id).files])
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
        swarm_rows.tell(session, swarm_id, "created", f"made by {access.principal.email}")

    ctx.db.write(work)
    ctx.keepers.wake.set()
    invitation = swarm_invitations.create(ctx, access, swarm_id, InvitationCreate(name="first"))
    return SwarmCreated(swarm=get(ctx, access, swarm_id), invitation=invitation)


def summaries(ctx: Context, access: Access, *, limit: int = 100) -> list[SwarmSummary]:
    """Newest first."""
    query = select(Swarm).where(Swarm.workspace_id == access.workspace_id).order_by(Swarm.id.desc()).limit(limit)
    with ctx.db.read() as session:
        found = session.scalars(query).all()
        there = swarm_rows.present_in(session, [swarm.id for swarm in found])
        return [swarm_views.summary(swarm, there[swarm.id]) for swarm in found]


def get(ctx: Context, access: Access, name_or_id: str) -> SwarmView:
    with ctx.db.read() as session:
        swarm = find.swarm(session, access, name_or_id)
        return swarm_views.view(session, swarm, access.workspace, ctx.keepers.status(swarm.id))


def peers(ctx: Context, access: Access, name_or_id: str) -> list[PeerView]:
    with ctx.db.read() as session:
        return swarm_views.peers(session, find.swarm(session, access, name_or_id).id)


def rounds(ctx: Context, access: Access, name_or_id: str, *, after: int = -1, limit: int = 1000) -> list[RoundView]:
    with ctx.db.read() as session:
        swarm_id = find.swarm(session, access, name_or_id).id
        return swarm_views.rounds(session, swarm_id, after=after, limit=limit)


def list_checkpoints(ctx: Context, access: Access, name_or_id: str) -> list[CheckpointView]:
    """Oldest first, as of a job."""
    with ctx.db.read() as session:
        kept = swarm_rows.kept(session, find.swarm(session, access, name_or_id).id)
        return [checkpoints.view(row) for _, row in reversed(kept)]


def stop(ctx: Context, access: Access, name_or_id: str) -> SwarmView:
    """Its keeper keeps a last checkpoint and tells all peers to leave. Idempotent."""

    def work(session: Session) -> str:
        swarm = find.swarm(session, access, name_or_id)
        if swarm.state == SwarmState.RUNNING:
            swarm.state, swarm.stopped_at = SwarmState.STOPPED.value, utcnow()
            swarm.reason = f"stopped by {access.principal.email}"
            swarm_rows.tell(session, swarm.id, "stopped", swarm.reason)
        return swarm.id

    return _changed(ctx, access, ctx.db.write(work, essential=True))


def resume(ctx: Context, access: Access, name_or_id: str, *, force: bool = False) -> SwarmView:
    """Go on from the newest checkpoint, as a run of its own: peers of before do not meet those who join from now on.

    Those of before that live hear of it with their next beat, and come over. `force` allows that they do.
    """

    def work(session: Session) -> str:
        swarm = find.swarm(session, access, name_or_id)
        there = swarm_rows.present(session, swarm.id)
        if swarm.state == SwarmState.RUNNING and there and not force:
            peers = f"{there} peer{'s' if there != 1 else ''}"
            raise NotAllowedNow(
                f"Swarm '{swarm.name}' is running: {peers} were heard of within the last {swarm_rows.SILENCE_S:.0f} s. "
                "Those that live would go back to the newest checkpoint, too.",
                hint=f"shoal swarm resume {swarm.name} --force",
            )
        found = swarm_rows.newest(session, swarm.id)
        _forget_rounds(session, swarm, found[0].round if found else -1)
        swarm.state, swarm.reason, swarm.stopped_at = SwarmState.RUNNING.value, None, None
        swarm.generation += 1
        swarm.addresses = []
        where = f"from checkpoint {found[1].name}" if found else "from the beginning: it has no checkpoint"
        swarm_rows.tell(session, swarm.id, "resumed", f"resumed by {access.principal.email}, {where}")
        return swarm.id

    return _changed(ctx, access, ctx.db.write(work))


def delete(ctx: Context, access: Access, name_or_id: str) -> None:
    """One that was stopped. Its checkpoints stay, as checkpoints of the workspace."""

    def work(session: Session) -> str:
        swarm = find.swarm(session, access, name_or_id)
        if swarm.state == SwarmState.RUNNING:
            raise NotAllowedNow(
                f"Swarm '{swarm.name}' is running; only one that was stopped can be deleted.",
                hint=f"shoal swarm stop {swarm.name}",
            )
        session.execute(sql_delete(SwarmPeer).where(SwarmPeer.swarm_id == swarm.id))
        session.execute(sql_delete(Swarm).where(Swarm.id == swarm.id))
        return swarm.id

    swarm_id = ctx.db.write(work, essential=True)
    KeeperProcess(swarm_rows.folder(ctx, swarm_id)).remove()
    ctx.keepers.forget(swarm_id)
    ctx.keepers.wake.set()


def _forget_rounds(session: Session, swarm: Swarm, last: int) -> None:
    """What lies behind the checkpoint is done once more, and counts then."""
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
