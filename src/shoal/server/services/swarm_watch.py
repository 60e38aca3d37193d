"""Sees to it that every running swarm has its keeper, once: starts, finds again, restarts, tells, reads, ends. One thread."""

from __future__ import annotations

import ipaddress
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from shoal.core.errors import Corrupt, NotFound, ShoalError
from shoal.core.loops import Loop
from shoal.core.swarm import KeeperOrder, SwarmSpec, Ticket
from shoal.core.swarm_views import SwarmState
from shoal.server.context import Context
from shoal.server.models.artifacts import Checkpoint
from shoal.server.models.swarm import Swarm
from shoal.server.services import swarm_reports, swarm_rows
from shoal.server.services.swarm_process import COMMAND, KeeperProcess
from shoal.store.materialize import materialize, remove_tree

logger = logging.getLogger(__name__)
KEEPER = "keeper"
_LOOK_S = 0.5
_IDLE_S = 5.0
_PAUSES_S = (1.0, 2.0, 5.0, 10.0, 30.0)
_SETTLED_S = 60.0
"""A keeper that has lived so long starts at once if it ends."""
_LEAVE_S = 30.0
"""For a last checkpoint, and for the word to reach the peers; then it is asked to end, and ended."""
_END_S = 10.0
_BOUND_S = 600.0
"""A pass may have to lay out a large checkpoint."""


@dataclass(slots=True)
class _Watched:
    process: KeeperProcess
    run_id: str = ""
    number: int = 0
    read: int = 0
    born_at: float = 0.0
    failures: int = 0
    not_before: float = 0.0
    told: tuple[dict[str, str], list[str]] = field(default_factory=lambda: ({}, []))
    """Members and banned ones, as it was last told."""
    leave_at: float | None = None
    """Since when it has been asked to leave."""


class SwarmWatch:
    def __init__(self, ctx: Context, url: str, *, command: Sequence[str] = COMMAND):
        self._ctx, self._url, self._command = ctx, url, command
        self._known: dict[str, _Watched] = {}
        self._is_first = True
        self._loop = Loop(
            "swarms", self._step, wait=ctx.keepers.wake.wait, is_closing=lambda: ctx.live.closing, bound_s=_BOUND_S
        )

    def start(self) -> None:
        self._ctx.loops.start(self._loop)

    def stop(self) -> None:
        """After `live.close()`. Keepers go on; the next server finds them."""
        self._ctx.keepers.wake.set()
        self._loop.stop()

    def _step(self) -> float:
        self._ctx.keepers.wake.clear()
        self.look(time.monotonic())
        return _LOOK_S if self._known else _IDLE_S

    def look(self, now: float) -> None:
        with self._ctx.db.read() as session:
            rows = {row.id: row for row in session.scalars(self._query()) if self._concerns(row)}
        self._is_first = False
        for swarm_id in set(self._known) - set(rows):
            self._known.pop(swarm_id).process.kill()  # it was deleted
        for swarm in rows.values():
            try:
                self._attend(swarm, now)
            except (ShoalError, OSError) as error:
                logger.warning("swarm %s: %s", swarm.id, error)
                self._ctx.keepers.status(swarm.id).problem = str(error)

    def _query(self) -> Select[Any]:
        """Stopped ones whose keeper is gone do not matter any more; when the server starts, each is looked at once."""
        running = Swarm.state == SwarmState.RUNNING.value
        return select(Swarm) if self._is_first else select(Swarm).where(running | Swarm.id.in_(list(self._known)))

    def _concerns(self, swarm: Swarm) -> bool:
        has_keeper = (swarm_rows.folder(self._ctx, swarm.id) / "lock").exists()
        return swarm.state == SwarmState.RUNNING or swarm.id in self._known or has_keeper

    def _attend(self, swarm: Swarm, now: float) -> None:
        watched = self._known.get(swarm.id) or self._meet(swarm, now)
        self._read(swarm.id, watched)
        is_wanted = swarm.state == SwarmState.RUNNING and watched.run_id in ("", swarm_rows.run_id(swarm))
        if not is_wanted:
            self._dismiss(swarm, watched, now)
        elif watched.process.is_alive:
            watched.leave_at = None
            self._tell(swarm, watched)
        else:
            self._revive(swarm, watched, now)

    def _meet(self, swarm: Swarm, now: float) -> _Watched:
        process = KeeperProcess(swarm_rows.folder(self._ctx, swarm.id), self._command)
        watched = _Watched(process, number=swarm.keeper_starts, read=swarm.keeper_read)
        if process.adopt():
            watched.born_at, watched.run_id = now, _run_id_of(process.folder)
            status = self._ctx.keepers.status(swarm.id)
            status.state, status.pid = "ready" if swarm.addresses else "starting", process.pid
            logger.info("swarm %s: its keeper (%s) is adopted", swarm.id, process.pid)
        self._known[swarm.id] = watched
        return watched

    def _read(self, swarm_id: str, watched: _Watched) -> None:
        while True:
            lines, read = watched.process.told(watched.number, watched.read)
            if read == watched.read:
                return
            if swarm_reports.take(self._ctx, swarm_id, watched.process.folder, lines):
                status = self._ctx.keepers.status(swarm_id)
                status.state, status.problem = "ready", None
            watched.read = read

    def _tell(self, swarm: Swarm, watched: _Watched) -> None:
        with self._ctx.db.read() as session:
            members, banned = swarm_rows.members(session, swarm.id), swarm_rows.banned(session, swarm.id)
        if (members, banned) == watched.told:
            return
        for peer in set(banned) - set(watched.told[1]):
            watched.process.tell({"do": "kick", "peer": peer})
        if watched.process.tell({"do": "members", "members": members, "banned": banned}):
            watched.told = (members, banned)

    def _revive(self, swarm: Swarm, watched: _Watched, now: float) -> None:
        status = self._ctx.keepers.status(swarm.id)
        if watched.run_id:
            self._mourn(swarm, watched, now)
        if now < watched.not_before:
            return
        order = self._order(swarm, watched.process.folder)
        number = swarm.keeper_starts + 1
        self._ctx.db.write(lambda session: _count(session, swarm.id, number))
        watched.number, watched.read = number, 0
        if not watched.process.start(number, order):
            return
        watched.run_id, watched.born_at, watched.leave_at = order.ticket.run_id, now, None
        watched.told = (order.ticket.members, order.banned)
        status.state, status.pid = "starting", watched.process.pid

    def _mourn(self, swarm: Swarm, watched: _Watched, now: float) -> None:
        """It has ended by itself."""
        status = self._ctx.keepers.status(swarm.id)
        watched.process.kill()
        lived_s = now - watched.born_at
        watched.failures = 0 if lived_s > _SETTLED_S else watched.failures + 1
        watched.not_before = now + (_PAUSES_S[min(watched.failures, len(_PAUSES_S)) - 1] if watched.failures else 0.0)
        watched.run_id = ""
        status.state, status.pid, status.restarts = "restarting", None, status.restarts + 1
        status.problem = watched.process.last_words() or "it ended without a word"
        logger.warning("swarm %s: its keeper ended: %s", swarm.id, status.problem)

    def _dismiss(self, swarm: Swarm, watched: _Watched, now: float) -> None:
        if not watched.process.is_alive:
            watched.process.kill()  # what it may have left behind
            watched.run_id, watched.leave_at = "", None
            self._ctx.db.write(lambda session: _silence(session, swarm.id))
            status = self._ctx.keepers.status(swarm.id)
            status.state, status.pid = "off", None
            if swarm.state == SwarmState.STOPPED:
                del self._known[swarm.id]
                (watched.process.folder / "lock").unlink(missing_ok=True)
            return
        if watched.leave_at is None:
            watched.leave_at = now
            watched.process.tell({"do": "checkpoint"})
            watched.process.tell({"do": "stop"})
            if not self._has_peers(swarm):
                watched.leave_at -= _LEAVE_S
        if now - watched.leave_at >= _LEAVE_S + _END_S:
            watched.process.kill()
        elif now - watched.leave_at >= _LEAVE_S:
            watched.process.terminate()

    def _has_peers(self, swarm: Swarm) -> bool:
        """Whether there is anybody to take a last checkpoint from; who is resumed has nobody."""
        with self._ctx.db.read() as session:
            return swarm.state == SwarmState.STOPPED and swarm_rows.present(session, swarm.id) > 0

    def _order(self, swarm: Swarm, folder: Path) -> KeeperOrder:
        spec, key = SwarmSpec.model_validate(swarm.spec), swarm_rows.signing_key(self._ctx, swarm)
        with self._ctx.db.read() as session:
            members, banned = swarm_rows.members(session, swarm.id), swarm_rows.banned(session, swarm.id)
        listen = [f"/{_listen_host(self._ctx)}/tcp/{swarm.port}"]
        ticket = Ticket(
            **spec.terms().model_dump(),
            swarm=swarm.name,
            run_id=swarm_rows.run_id(swarm),
            peer=KEEPER,
            peer_name=KEEPER,
            listen=listen,
            state_dir=str(folder / "state"),
            server=self._url,
            token="",
            signing_key=key,
            members=members,
            owner_key=swarm.owner_key,
            fingerprint=swarm.fingerprint,
        )
        return KeeperOrder(
            ticket=ticket,
            owner_signing_key=key,
            identity_path=str(folder / "identity"),
            listen=listen,
            folder=str(folder / "checkpoints"),
            every_rounds=spec.every_rounds,
            every_s=spec.every_s,
            snapshot=self._snapshot(swarm, folder),
            banned=banned,
        )

    def _snapshot(self, swarm: Swarm, folder: Path) -> str | None:
        """The newest checkpoint whose every byte verifies, laid out for the keeper; damaged ones are marked and passed over."""
        with self._ctx.db.read() as session:
            rows = [row for _, row in swarm_rows.kept(session, swarm.id) if not row.damaged]
        for row in rows:
            dest = folder / f"snapshot-{row.id}"
            try:
                if not dest.is_dir():
                    for old in folder.glob("snapshot-*"):
                        remove_tree(old)
                    materialize(self._ctx.store.get_manifest(row.manifest_id), self._ctx.store.get, dest)
                return str(dest)
            except (Corrupt, NotFound) as error:
                text = f"{row.id} cannot be used: {error}"
                self._ctx.db.write(lambda session, row=row, text=text: _damaged(session, swarm.id, row.id, text))  # type: ignore[misc]
        return None


def _count(session: Session, swarm_id: str, number: int) -> None:
    swarm = session.get_one(Swarm, swarm_id)
    swarm.keeper_starts, swarm.keeper_read, swarm.addresses = number, 0, []


def _silence(session: Session, swarm_id: str) -> None:
    swarm = session.get_one(Swarm, swarm_id)
    swarm.addresses = []
    if swarm.progress:
        swarm.progress = {**swarm.progress, "alive": 0, "performance": None}


def _damaged(session: Session, swarm_id: str, checkpoint_id: str, text: str) -> None:
    session.get_one(Checkpoint, checkpoint_id).damaged = True
    swarm_rows.tell(session, swarm_id, "checkpoint_damaged", text, id=checkpoint_id)


def _run_id_of(folder: Path) -> str:
    try:
        return KeeperOrder.model_validate_json((folder / "order.json").read_bytes()).ticket.run_id
    except (OSError, ValueError):
        return "unknown"


def _listen_host(ctx: Context) -> str:
    """Where the server itself listens, its keeper does."""
    host = "127.0.0.1" if ctx.private or ctx.settings.host == "localhost" else ctx.settings.host
    try:
        return f"ip{ipaddress.ip_address(host).version}/{host}"
    except ValueError:
        return "ip4/0.0.0.0"
