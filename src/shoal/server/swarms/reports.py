"""Reports of a coordinator, written to the database: each line exactly once, even if a process is killed at any point.

The reports contain data from peers, which are not trusted: only numbers and short texts are accepted.
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

from shoal.core.checkpoints import CheckpointFacts, CheckpointPush
from shoal.core.errors import ShoalError
from shoal.core.people import ALL_SCOPES, Role
from shoal.core.retention import Retention
from shoal.core.schema import View, utcnow
from shoal.core.swarm_views import PeerMark, PeerState
from shoal.server.artifacts import checkpoints
from shoal.server.artifacts.commit import store_packed
from shoal.server.context import Context
from shoal.server.db import in_parts
from shoal.server.models.checkpoints import Checkpoint
from shoal.server.models.swarm import Swarm, SwarmCheckpoint, SwarmPeer, SwarmRound
from shoal.server.policy import Access, Principal
from shoal.server.swarms import swarm_rows, trust
from shoal.store.pack import pack_tree

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
    credit: dict[Text, Annotated[int, Field(ge=0, lt=_MOST)]] = {}
    """Peer → accepted samples of this round."""


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


class Reported(PeerMark):
    event: Literal["reported"]
    peer: Text


class Kicked(View):
    event: Literal["kicked"]
    peer: Text
    reason: Text = ""
    evidence: list[PeerMark] = Field(default=[], max_length=trust.MOST_MARKS)


Report = Ready | Progress | Round | Kept | Rollback | Reported | Kicked
_REPORT: TypeAdapter[Report] = TypeAdapter(Annotated[Report, Field(discriminator="event")])


def parse(line: bytes) -> Report | None:
    """Return the report in a line; None for an unknown one, because a coordinator may be newer than this server."""
    try:
        return _REPORT.validate_python(json.loads(line))
    except (ValueError, RecursionError):
        if line.strip():
            logger.debug("unknown report of a coordinator: %r", line[:200])
        return None


def store_reports(ctx: Context, swarm_id: str, folder: Path, lines: list[tuple[bytes, int]]) -> bool:
    """Write reports to the database together with the read offset; return whether one of them says "ready".

    The offset is committed in the same transaction as the reports before it, so a crash never loses or repeats a line.
    """
    is_ready = False
    some: list[Report] = []
    for line, end in lines:
        report = parse(line)
        is_ready |= isinstance(report, Ready)
        if isinstance(report, Kept):
            _apply_all(ctx, swarm_id, some, end - len(line) - 1)
            some = []
            _keep(ctx, swarm_id, folder, report, end)
        elif report is not None:
            some.append(report)
    if lines:
        _apply_all(ctx, swarm_id, some, lines[-1][1])
        ctx.live.job_changed(swarm_id)
    return is_ready


def _apply_all(ctx: Context, swarm_id: str, reports: list[Report], end: int) -> None:
    def work(session: Session) -> tuple[str, list[tuple[str, str]]]:
        swarm = session.get(Swarm, swarm_id)
        if swarm is None:
            return "", []
        found = [_apply(session, swarm, report) for report in reports]
        swarm.coordinator_read = end
        return swarm.created_by, [mail for mail in found if mail is not None]

    owner, mails = ctx.db.write(work)
    for subject, text in mails:
        trust.send_mail(ctx, swarm_id, owner, subject, text)


def _apply(session: Session, swarm: Swarm, report: Report) -> tuple[str, str] | None:
    """Apply a report; return subject and text of an e-mail to the owner, if it needs one."""
    if isinstance(report, Ready):
        swarm.addresses = report.addresses
        swarm_rows.record_event(session, swarm.id, "ready", "the coordinator is ready")
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
        trust.add_credit(session, swarm.id, report.credit)
    elif isinstance(report, Rollback):
        text = f"rolled back to round {report.to_round}: {report.reason}"
        swarm_rows.record_event(session, swarm.id, "rollback", text, to_round=report.to_round)
    elif isinstance(report, Reported):
        mark = PeerMark(round=report.round, by=report.by, of=report.of)
        trust.record_mark(session, swarm, report.peer, mark)
    elif isinstance(report, Kicked):
        return trust.record_removal(session, swarm, report.peer, report.reason, report.evidence)
    return None


def _progress(session: Session, swarm: Swarm, report: Progress) -> None:
    told = report.model_dump(include={"round", "samples", "total_samples", "loss", "alive", "performance"})
    if not report.alive and swarm.progress:
        # No peer is connected: keep the progress made so far.
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
            _update_peer(peer, told_of[peer.id])


def _update_peer(peer: SwarmPeer, one: PeerReport) -> None:
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


def _keep(ctx: Context, swarm_id: str, folder: Path, report: Kept, end: int) -> None:
    """Store a checkpoint folder of the coordinator in the workspace; record an event if it is missing or invalid."""
    try:
        _store(ctx, swarm_id, folder, report, end)
    except (ShoalError, OSError, ValueError) as error:
        text = f"the checkpoint of round {report.round} could not be stored: {error}"
        logger.warning("swarm %s: %s", swarm_id, text)

        def record(session: Session) -> None:
            if swarm := session.get(Swarm, swarm_id):
                swarm_rows.record_event(session, swarm_id, "checkpoint_failed", text)
                swarm.coordinator_read = end

        ctx.db.write(record)


def _store(ctx: Context, swarm_id: str, folder: Path, report: Kept, end: int) -> None:
    root = Path(report.path).resolve()
    if not root.is_relative_to(folder.resolve()) or not (root / "swarm.json").is_file():
        raise ValueError(f"{report.path} is not a checkpoint folder of the coordinator")
    told: dict[str, Any] = json.loads((root / "swarm.json").read_bytes())
    packed = pack_tree(root, ignore=False)
    with ctx.db.read() as session:
        swarm = session.get_one(Swarm, swarm_id)

    def also(session: Session, row: Checkpoint) -> None:
        row.kept = False
        found = session.get_one(Swarm, swarm_id)
        found.coordinator_read = end
        if isinstance(told.get("fingerprint"), str):
            found.fingerprint = told["fingerprint"][:200]
        samples = told.get("samples") if isinstance(told.get("samples"), int) else None
        session.add(
            SwarmCheckpoint(
                checkpoint_id=row.id, swarm_id=swarm_id, round=report.round, hash=report.hash, samples=samples
            )
        )
        session.flush()
        swarm_rows.record_event(
            session, swarm_id, "checkpoint", f"round {report.round} is saved as {row.name}", id=row.id
        )
        _retain(session, found)

    push = CheckpointPush(
        name=f"{swarm.name[:40]}-round-{report.round}",
        manifest=packed.manifest,
        facts=CheckpointFacts(step=report.round, train_loss=report.loss),
    )
    store_packed(
        ctx, swarm.workspace_id, packed, lambda: checkpoints.push(ctx, _coordinator_access(swarm), push, also=also)
    )


def _retain(session: Session, swarm: Swarm) -> None:
    rows = [row for _, row in reversed(swarm_rows.kept(session, swarm.id))]
    stay = Retention(keep_last=swarm.spec["keep_last"]).chosen(
        [{"id": row.id, "kept": row.kept, "metrics": {}} for row in rows]
    )
    for row in rows:
        if row.id not in stay:
            session.delete(row)


def _coordinator_access(swarm: Swarm) -> Access:
    """Return the access with which the coordinator acts: that of the swarm's creator."""
    principal = Principal("", swarm.created_by, False, frozenset(ALL_SCOPES), swarm.id)
    return Access(principal, swarm.workspace_id, "", Role.MEMBER)
