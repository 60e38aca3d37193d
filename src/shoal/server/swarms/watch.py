"""Supervision of swarm coordinators: every running swarm has exactly one. Runs in one thread.

Why this is safe: only this thread uses `_known` and starts coordinators, and a lock file held by the coordinator's process
prevents a second one, also after a crash of the server. The number of a start is committed before the process is started,
so its reports are never mistaken for those of another start. After a restart, the server finds the running processes by
their environment and continues to read at the committed offset.
"""

from __future__ import annotations

import ipaddress
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from shoal.core.background_loops import Loop, run_all
from shoal.core.errors import Corrupt, NotFound, ShoalError
from shoal.core.swarm import CoordinatorSettings, SwarmSpec, Ticket
from shoal.core.swarm_views import SwarmState
from shoal.server.context import Context
from shoal.server.models.checkpoints import Checkpoint
from shoal.server.models.swarm import Swarm
from shoal.server.swarms import reports as swarm_reports
from shoal.server.swarms import swarm_rows
from shoal.server.swarms.process import COMMAND, CoordinatorProcess
from shoal.store.materialize import materialize, remove_tree

logger = logging.getLogger(__name__)
COORDINATOR = "keeper"
_LOOK_S = 0.5
_IDLE_S = 5.0
_PAUSES_S = (1.0, 2.0, 5.0, 10.0, 30.0)
_SETTLED_S = 60.0
"""A coordinator that ran at least this long is restarted without a pause."""
_LEAVE_S = 30.0
"""Seconds for a last checkpoint and for the peers to be informed. Then the coordinator gets SIGTERM."""
_END_S = 10.0
"""Seconds between SIGTERM and SIGKILL."""
_BOUND_S = 600.0
"""Seconds after which a pass counts as late; writing the files of a large checkpoint takes long."""


@dataclass(slots=True)
class _Watched:
    process: CoordinatorProcess
    run_id: str = ""
    number: int = 0
    read: int = 0
    born_at: float = 0.0
    failures: int = 0
    not_before: float = 0.0
    told: tuple[dict[str, str], list[str]] = field(default_factory=lambda: ({}, []))
    """Members and banned peers as last sent to the coordinator."""
    leave_at: float | None = None
    """Monotonic time at which it was asked to leave; None if it was not."""


class SwarmWatch:
    """The thread that supervises all coordinators of a server."""

    def __init__(self, ctx: Context, url: str, *, command: Sequence[str] = COMMAND):
        self._ctx, self._url, self._command = ctx, url, command
        self._known: dict[str, _Watched] = {}
        self._is_first = True
        self._loop = Loop(
            "swarms", self._step, wait=ctx.coordinators.wake.wait, is_closing=lambda: ctx.live.closing, bound_s=_BOUND_S
        )

    def start(self) -> None:
        self._ctx.loops.start(self._loop)

    def stop(self) -> None:
        """End the thread; call `live.close()` first. Coordinators keep running, and the next server finds them."""
        self._ctx.coordinators.wake.set()
        self._loop.stop()

    def _step(self) -> float:
        self._ctx.coordinators.wake.clear()
        self.poll(time.monotonic())
        return _LOOK_S if self._known else _IDLE_S

    def poll(self, now: float) -> None:
        """Run one pass over all swarms; `now` is the monotonic time."""
        with self._ctx.db.read() as session:
            rows = {row.id: row for row in session.scalars(self._query()) if self._concerns(row)}
        self._is_first = False
        for swarm_id in set(self._known) - set(rows):
            self._known.pop(swarm_id).process.kill()  # it was deleted
        run_all(partial(self._try, swarm, now) for swarm in rows.values())

    def _try(self, swarm: Swarm, now: float) -> None:
        """Supervise one swarm. Known errors are its own problem, shown with it; any other makes the whole loop fail."""
        try:
            self._supervise(swarm, now)
        except (ShoalError, OSError) as error:
            logger.warning("swarm %s: %s", swarm.id, error)
            self._ctx.coordinators.status(swarm.id).problem = str(error)

    def _query(self) -> Select[Any]:
        """Select the swarms to check: all of them in the first pass, then only running ones and those with a coordinator."""
        running = Swarm.state == SwarmState.RUNNING.value
        return select(Swarm) if self._is_first else select(Swarm).where(running | Swarm.id.in_(list(self._known)))

    def _concerns(self, swarm: Swarm) -> bool:
        has_coordinator = (swarm_rows.folder(self._ctx, swarm.id) / "lock").exists()
        return swarm.state == SwarmState.RUNNING or swarm.id in self._known or has_coordinator

    def _supervise(self, swarm: Swarm, now: float) -> None:
        watched = self._known.get(swarm.id) or self._add(swarm, now)
        self._read(swarm.id, watched)
        is_wanted = swarm.state == SwarmState.RUNNING and watched.run_id in ("", swarm_rows.run_id(swarm))
        if not is_wanted:
            self._end(swarm, watched, now)
        elif watched.process.is_alive:
            watched.leave_at = None
            self._send_members(swarm, watched)
        else:
            self._restart(swarm, watched, now)

    def _add(self, swarm: Swarm, now: float) -> _Watched:
        process = CoordinatorProcess(swarm_rows.folder(self._ctx, swarm.id), self._command)
        watched = _Watched(process, number=swarm.coordinator_starts, read=swarm.coordinator_read)
        if process.adopt():
            watched.born_at, watched.run_id = now, _run_id_of(process.folder)
            status = self._ctx.coordinators.status(swarm.id)
            status.state, status.pid = "ready" if swarm.addresses else "starting", process.pid
            logger.info("swarm %s: found its running coordinator (pid %s)", swarm.id, process.pid)
        self._known[swarm.id] = watched
        return watched

    def _read(self, swarm_id: str, watched: _Watched) -> None:
        while True:
            lines, read = watched.process.read_messages(watched.number, watched.read)
            if read == watched.read:
                return
            if swarm_reports.store_reports(self._ctx, swarm_id, watched.process.folder, lines):
                status = self._ctx.coordinators.status(swarm_id)
                status.state, status.problem = "ready", None
            watched.read = read

    def _send_members(self, swarm: Swarm, watched: _Watched) -> None:
        with self._ctx.db.read() as session:
            members, banned = swarm_rows.members(session, swarm.id), swarm_rows.banned(session, swarm.id)
        if (members, banned) == watched.told:
            return
        for peer in set(banned) - set(watched.told[1]):
            watched.process.send({"do": "kick", "peer": peer})
        if watched.process.send({"do": "members", "members": members, "banned": banned}):
            watched.told = (members, banned)

    def _restart(self, swarm: Swarm, watched: _Watched, now: float) -> None:
        status = self._ctx.coordinators.status(swarm.id)
        if watched.run_id:
            self._record_exit(swarm, watched, now)
        if now < watched.not_before:
            return
        settings = self._coordinator_settings(swarm, watched.process.folder)
        number = swarm.coordinator_starts + 1
        self._ctx.db.write(lambda session: _count(session, swarm.id, number))
        watched.number, watched.read = number, 0
        if not watched.process.start(number, settings):
            return
        watched.run_id, watched.born_at, watched.leave_at = settings.ticket.run_id, now, None
        watched.told = (settings.ticket.members, settings.banned)
        status.state, status.pid = "starting", watched.process.pid

    def _record_exit(self, swarm: Swarm, watched: _Watched, now: float) -> None:
        """Record that the coordinator ended by itself, and compute the pause before its next start."""
        status = self._ctx.coordinators.status(swarm.id)
        watched.process.kill()
        lived_s = now - watched.born_at
        watched.failures = 0 if lived_s > _SETTLED_S else watched.failures + 1
        watched.not_before = now + (_PAUSES_S[min(watched.failures, len(_PAUSES_S)) - 1] if watched.failures else 0.0)
        watched.run_id = ""
        status.state, status.pid, status.restarts = "restarting", None, status.restarts + 1
        status.problem = watched.process.last_words() or "it ended without a message in its log"
        logger.warning("swarm %s: its coordinator ended: %s", swarm.id, status.problem)

    def _end(self, swarm: Swarm, watched: _Watched, now: float) -> None:
        if not watched.process.is_alive:
            watched.process.kill()  # processes that it may have left behind
            watched.run_id, watched.leave_at = "", None
            self._ctx.db.write(lambda session: _clear_live_state(session, swarm.id))
            status = self._ctx.coordinators.status(swarm.id)
            status.state, status.pid = "off", None
            if swarm.state == SwarmState.STOPPED:
                del self._known[swarm.id]
                (watched.process.folder / "lock").unlink(missing_ok=True)
            return
        if watched.leave_at is None:
            watched.leave_at = now
            watched.process.send({"do": "checkpoint"})
            watched.process.send({"do": "stop"})
            if not self._has_peers(swarm):
                watched.leave_at -= _LEAVE_S
        if now - watched.leave_at >= _LEAVE_S + _END_S:
            watched.process.kill()
        elif now - watched.leave_at >= _LEAVE_S:
            watched.process.terminate()

    def _has_peers(self, swarm: Swarm) -> bool:
        """Return whether peers are present that a last checkpoint can be taken from; never for a resumed swarm."""
        with self._ctx.db.read() as session:
            return swarm.state == SwarmState.STOPPED and swarm_rows.present(session, swarm.id) > 0

    def _coordinator_settings(self, swarm: Swarm, folder: Path) -> CoordinatorSettings:
        spec, key = SwarmSpec.model_validate(swarm.spec), swarm_rows.signing_key(self._ctx, swarm)
        with self._ctx.db.read() as session:
            members, banned = swarm_rows.members(session, swarm.id), swarm_rows.banned(session, swarm.id)
        listen = [f"/{_listen_host(self._ctx)}/tcp/{swarm.port}"]
        ticket = Ticket(
            **spec.terms().model_dump(),
            swarm=swarm.name,
            run_id=swarm_rows.run_id(swarm),
            peer=COORDINATOR,
            peer_name=COORDINATOR,
            listen=listen,
            state_dir=str(folder / "state"),
            server=self._url,
            token="",
            signing_key=key,
            members=members,
            owner_key=swarm.owner_key,
            fingerprint=swarm.fingerprint,
        )
        return CoordinatorSettings(
            ticket=ticket,
            owner_signing_key=key,
            identity_path=str(folder / "identity"),
            listen=listen,
            folder=str(folder / "checkpoints"),
            every_rounds=spec.every_rounds,
            every_s=spec.every_s,
            snapshot=self._write_newest_state(swarm, folder),
            banned=banned,
        )

    def _write_newest_state(self, swarm: Swarm, folder: Path) -> str | None:
        """Write the files of the newest intact checkpoint to the folder and return its path, or None.

        Checkpoints that turn out to be damaged are marked so and skipped.
        """
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
    swarm.coordinator_starts, swarm.coordinator_read, swarm.addresses = number, 0, []


def _clear_live_state(session: Session, swarm_id: str) -> None:
    swarm = session.get_one(Swarm, swarm_id)
    swarm.addresses = []
    if swarm.progress:
        swarm.progress = {**swarm.progress, "alive": 0, "performance": None}


def _damaged(session: Session, swarm_id: str, checkpoint_id: str, text: str) -> None:
    session.get_one(Checkpoint, checkpoint_id).damaged = True
    swarm_rows.record_event(session, swarm_id, "checkpoint_damaged", text, id=checkpoint_id)


def _run_id_of(folder: Path) -> str:
    try:
        return CoordinatorSettings.model_validate_json((folder / "order.json").read_bytes()).ticket.run_id
    except (OSError, ValueError):
        return "unknown"


def _listen_host(ctx: Context) -> str:
    """Return the address part of the coordinator's multiaddress: it listens where the server itself listens."""
    host = "127.0.0.1" if ctx.private or ctx.settings.host == "localhost" else ctx.settings.host
    try:
        return f"ip{ipaddress.ip_address(host).version}/{host}"
    except ValueError:
        return "ip4/0.0.0.0"
