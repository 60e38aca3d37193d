"""What a keeper tells, into the tables: each line exactly once, whoever is killed when.

Its words come from peers in the end, so they are taken for numbers and short texts, and for nothing else.
"""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, TypeAdapter
from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.checkpoints import CheckpointFacts, CheckpointPush, Retention
from shoal.core.errors import ShoalError
from shoal.core.people import ALL_SCOPES, Role
from shoal.core.schema import View, utcnow
from shoal.core.swarm_views import PeerState
from shoal.server.context import Context
from shoal.server.db import in_parts
from shoal.server.models.artifacts import Checkpoint
from shoal.server.models.swarm import Swarm, SwarmCheckpoint, SwarmPeer, SwarmRound
from shoal.server.policy import Access, Principal
from shoal.server.services import checkpoints, chunks, swarm_rows
from shoal.store.manifest import chunk_hashes
from shoal.store.pack import pack_tree
from shoal.store.transfer import upload

logger = logging.getLogger(__name__)
_MOST = 1 << 62


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


Number = Annotated[float | None, BeforeValidator(_finite)]
Count = Annotated[int | None, BeforeValidator(_finite), Field(ge=0, lt=_MOST)]
Text = Annotated[str, Field(max_length=500)]


class Ready(View):
    event: Literal["ready"]
    addresses: list[Text]


class PeerReport(View):
    peer: Text
    round: Count = None
    samples: Count = None
    samples_per_s: Number = None
    loss: Number = None
    mini_steps: Count = None
    bytes_in: Count = None
    bytes_out: Count = None
    state: Text = ""


class Progress(View):
    event: Literal["progress"]
    round: Annotated[int, Field(ge=0, lt=_MOST)]
    samples: Count = None
    total_samples: Count = None
    loss: Number = None
    alive: Count = None
    performance: Number = None
    peers: list[PeerReport] = []


class Round(View):
    event: Literal["round"]
    round: Annotated[int, Field(ge=0, lt=_MOST)]
    seconds: Number = None
    members: list[Text] = []
    averaged: Number = None
    bytes: Count = None


class Kept(View):
    event: Literal["checkpoint"]
    path: str
    round: Annotated[int, Field(ge=0, lt=_MOST)]
    hash: Text
    loss: Number = None


class Rollback(View):
    event: Literal["rollback"]
    to_round: int
    reason: Text = ""


class Kicked(View):
    event: Literal["kicked"]
    peer: Text
    reason: Text = ""


Report = Ready | Progress | Round | Kept | Rollback | Kicked
_REPORT: TypeAdapter[Report] = TypeAdapter(Annotated[Report, Field(discriminator="event")])


def parse(line: bytes) -> Report | None:
    """None for what is not understood: a keeper may be newer than this server."""
    try:
        return _REPORT.validate_python(json.loads(line))
    except ValueError:
        if line.strip():
            logger.debug("a keeper told %r", line[:200])
        return None


def take(ctx: Context, swarm_id: str, folder: Path, lines: list[tuple[bytes, int]]) -> bool:
    """Into the tables, with how far we have read; whether it has said that it is ready."""
    is_ready = False
    some: list[Report] = []
    for line, end in lines:
        report = parse(line)
        is_ready |= isinstance(report, Ready)
        if isinstance(report, Kept):
            _note(ctx, swarm_id, some, end - len(line) - 1)
            some = []
            _keep(ctx, swarm_id, folder, report, end)
        elif report is not None:
            some.append(report)
    if lines:
        _note(ctx, swarm_id, some, lines[-1][1])
        ctx.live.job_changed(swarm_id)
    return is_ready


def _note(ctx: Context, swarm_id: str, reports: list[Report], end: int) -> None:
    def work(session: Session) -> None:
        swarm = session.get(Swarm, swarm_id)
        if swarm is None:
            return
        for report in reports:
            _apply(session, swarm, report)
        swarm.keeper_read = end

    ctx.db.write(work)


def _apply(session: Session, swarm: Swarm, report: Report) -> None:
    if isinstance(report, Ready):
        swarm.addresses = report.addresses
        swarm_rows.tell(session, swarm.id, "ready", "the keeper is up")
    elif isinstance(report, Progress):
        _progress(session, swarm, report)
    elif isinstance(report, Round):
        row = _round(session, swarm.id, report.round)
        row.seconds, row.averaged, row.bytes, row.members = (
            report.seconds,
            report.averaged,
            report.bytes,
            report.members,
        )
    elif isinstance(report, Rollback):
        text = f"gone back to round {report.to_round}: {report.reason}"
        swarm_rows.tell(session, swarm.id, "rollback", text, to_round=report.to_round)
    elif isinstance(report, Kicked):
        _kicked(session, swarm, report)


def _progress(session: Session, swarm: Swarm, report: Progress) -> None:
    told = report.model_dump(include={"round", "samples", "total_samples", "loss", "alive", "performance"})
    if not report.alive and swarm.progress:
        # Nobody is there: what was reached still holds.
        swarm.progress = {**swarm.progress, "alive": 0, "performance": None}
        return
    swarm.progress = told if report.loss is not None else {**told, "loss": (swarm.progress or {}).get("loss")}
    row = _round(session, swarm.id, report.round)
    for key in ("samples", "alive", "performance", "loss"):
        if told[key] is not None:
            setattr(row, key, told[key])
    told_of = {one.peer: one for one in report.peers}
    for some in in_parts(told_of):
        of = SwarmPeer.swarm_id == swarm.id, SwarmPeer.id.in_(some), SwarmPeer.state.not_in(swarm_rows.GONE)
        for peer in session.scalars(select(SwarmPeer).where(*of)):
            _peer_told(peer, told_of[peer.id])


def _peer_told(peer: SwarmPeer, one: PeerReport) -> None:
    stats = one.model_dump(exclude={"peer", "state"})
    peer.stats = {**peer.stats, **{key: value for key, value in stats.items() if value is not None}}
    peer.seen_at = utcnow()
    if one.state == PeerState.TRAINING:
        peer.state = PeerState.TRAINING.value


def _round(session: Session, swarm_id: str, number: int) -> SwarmRound:
    row = session.get(SwarmRound, (swarm_id, number))
    if row is None:
        row = SwarmRound(swarm_id=swarm_id, round=number, at=utcnow(), members=[])
        session.add(row)
    return row


def _kicked(session: Session, swarm: Swarm, report: Kicked) -> None:
    peer = session.get(SwarmPeer, report.peer)
    if peer is None or peer.swarm_id != swarm.id or peer.state == PeerState.KICKED:
        return
    peer.state, peer.reason, peer.left_at = PeerState.KICKED.value, report.reason, utcnow()
    text = f"peer '{peer.name}' ({peer.id}) was sent away by the keeper: {report.reason}"
    swarm_rows.tell(session, swarm.id, "kicked", text, peer=peer.id)


def _keep(ctx: Context, swarm_id: str, folder: Path, report: Kept, end: int) -> None:
    """A folder of the keeper's becomes a checkpoint of the workspace, unless it is gone or not what it says."""
    try:
        _store(ctx, swarm_id, folder, report, end)
    except (ShoalError, OSError, ValueError) as error:
        text = f"the checkpoint of round {report.round} could not be kept: {error}"
        logger.warning("swarm %s: %s", swarm_id, text)

        def tell(session: Session) -> None:
            if swarm := session.get(Swarm, swarm_id):
                swarm_rows.tell(session, swarm_id, "checkpoint_failed", text)
                swarm.keeper_read = end

        ctx.db.write(tell)


def _store(ctx: Context, swarm_id: str, folder: Path, report: Kept, end: int) -> None:
    root = Path(report.path).resolve()
    if not root.is_relative_to(folder.resolve()) or not (root / "swarm.json").is_file():
        raise ValueError(f"{report.path} is not a folder of the keeper's")
    told: dict[str, Any] = json.loads((root / "swarm.json").read_bytes())
    packed = pack_tree(root, ignore=False)
    upload(packed, ctx.store)
    with ctx.db.read() as session:
        swarm = session.get_one(Swarm, swarm_id)
    chunks.own(ctx, swarm.workspace_id, chunk_hashes(packed.manifest))

    def also(session: Session, row: Checkpoint) -> None:
        row.kept = False
        found = session.get_one(Swarm, swarm_id)
        found.keeper_read = end
        if isinstance(told.get("fingerprint"), str):
            found.fingerprint = told["fingerprint"][:200]
        samples = told.get("samples") if isinstance(told.get("samples"), int) else None
        session.add(
            SwarmCheckpoint(
                checkpoint_id=row.id, swarm_id=swarm_id, round=report.round, hash=report.hash, samples=samples
            )
        )
        session.flush()
        swarm_rows.tell(session, swarm_id, "checkpoint", f"round {report.round} is safe as {row.name}", id=row.id)
        _retain(session, found)

    push = CheckpointPush(
        name=f"{swarm.name[:40]}-round-{report.round}",
        manifest=packed.manifest,
        facts=CheckpointFacts(step=report.round, train_loss=report.loss),
    )
    checkpoints.push(ctx, _keepers_access(swarm), push, also=also)


def _retain(session: Session, swarm: Swarm) -> None:
    rows = [row for _, row in reversed(swarm_rows.kept(session, swarm.id))]
    stay = Retention(keep_last=swarm.spec["keep_last"]).chosen(
        [{"id": row.id, "kept": row.kept, "metrics": {}} for row in rows]
    )
    for row in rows:
        if row.id not in stay:
            session.delete(row)


def _keepers_access(swarm: Swarm) -> Access:
    """The keeper acts for the one who made the swarm."""
    principal = Principal("", swarm.created_by, False, frozenset(ALL_SCOPES), swarm.id)
    return Access(principal, swarm.workspace_id, "", Role.MEMBER)
