"""The SSH gateway: one port by which people reach their leases. Agents come to the same port by themselves, so that no machine
needs one of its own; what a person opens here goes on through the agent's connection, to the SSH server inside the lease.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import socket
import threading
from collections import defaultdict
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import select

from shoal.core.errors import MissingExtra, Refused
from shoal.core.loops import Problem
from shoal.server.guards import Tries
from shoal.server.models.leases import Lease
from shoal.server.pool import host_of

if TYPE_CHECKING:
    import asyncssh

    from shoal.server.context import Context
    from shoal.server.gateway_visits import Visit

logger = logging.getLogger(__name__)
T = TypeVar("T")
_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104
_CLOSE_S = 5.0


class Gateway:
    def __init__(self) -> None:
        self.port: int | None = None
        self.problem: str | None = None
        """Why nobody can be let in."""
        self.tries = Tries()
        self.tunnels: dict[str, asyncssh.SSHServerConnection] = {}
        """Lease → the connection of the agent that holds it."""
        self.doors: dict[str, tuple[str, int]] = {}
        """Lease → where on its own machine it is reached, if we could reach it there."""
        self.visits: defaultdict[str, set[Visit]] = defaultdict(set)
        self.knocking: set[Visit] = set()
        self._acceptors: dict[str, asyncssh.SSHAcceptor] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ctx: Context | None = None
        self._telling: set[asyncio.Future[None]] = set()
        self._lock = threading.Lock()

    @staticmethod
    def is_installed() -> bool:
        return importlib.util.find_spec("asyncssh") is not None

    def open(self, ctx: Context) -> None:
        """At the server's start, after the pool. Leases that run go on as soon as their agents have found us again."""
        self._ctx = ctx
        with ctx.db.read() as session:
            is_needed = session.scalar(select(Lease.id).where(Lease.ended_at.is_(None)).limit(1)) is not None
        if is_needed and self.is_installed():
            self._start(ctx)

    def close(self) -> None:
        if self._loop is None or self._thread is None:
            return
        try:
            self.run(self._close()).result(_CLOSE_S)
        except TimeoutError:
            logger.warning("connections through the gateway do not close")
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = None

    def demand(self) -> None:
        """Raise unless leases can be reached; with the first of them we open."""
        if not self.is_installed():
            raise MissingExtra(
                "Leases need a package that is not installed on the server.", hint="pip install 'shoal[machines]'"
            )
        with self._lock:
            if self._loop is None and self._ctx is not None:
                self._start(self._ctx)
        if self.problem is not None:
            raise Refused(f"Leases cannot be reached: {self.problem}.", hint="shoal server log")

    def name_for(self, host: str) -> str:
        """What people call the gateway's machine: what they are told to, else what they call the server."""
        if self._ctx is None:
            return host
        names = [name for name in self._ctx.settings.hosts.split(",") if name.strip()]
        return names[0].strip() if names else host or self._ctx.settings.host

    def listen_at(self, address: str) -> None:
        """Also at this address of ours; at all of them on the same port, which stays."""
        if self._loop is None or not address or address in self._acceptors or set(_WILDCARDS) & set(self._acceptors):
            return
        try:
            self.run(self._listen(address)).result()
        except OSError as error:
            problem = f"the gateway cannot listen on {address}:{self._wanted_port()} ({error.strerror})"
            logger.error("%s", problem)
            self.problem = None if self._acceptors else problem

    def is_connected(self, lease_id: str) -> bool:
        return lease_id in self.tunnels

    def drop(self, lease_id: str) -> None:
        """Everybody out, now. From any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._drop, lease_id)

    def tell(self, lease_id: str, text: str) -> None:
        """Into every terminal that is open on it. From any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._tell, lease_id, text)

    def _start(self, ctx: Context) -> None:
        """Only now: what it takes to speak SSH would make every server slower to start."""
        logging.getLogger("asyncssh").setLevel(logging.WARNING)  # it tells of every connection and channel
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gateway", daemon=True)
        self._thread.start()
        ctx.loops.watch("ssh gateway", self._check)
        self.listen_at(ctx.settings.ssh_host or ctx.settings.host)
        for address in {host_of(machine.url) for machine in ctx.pool.machines()}:
            self.listen_at(address)

    def _check(self) -> Problem | None:
        is_dead = self._loop is not None and self._thread is not None and not self._thread.is_alive()
        return Problem("ssh gateway", "dead", 0.0, "its thread has ended") if is_dead else None

    def _drop(self, lease_id: str) -> None:
        for visit in list(self.visits.get(lease_id, ())):
            visit.leave("This lease has ended.")
        self.doors.pop(lease_id, None)
        tunnel = self.tunnels.pop(lease_id, None)
        if tunnel is not None:
            tunnel.abort()

    def _tell(self, lease_id: str, text: str) -> None:
        for visit in list(self.visits.get(lease_id, ())):
            visit.tell(text)
        if (tunnel := self.tunnels.get(lease_id)) is not None and self._ctx is not None:
            from shoal.server.gateway_visits import tell_inside

            telling = asyncio.ensure_future(tell_inside(self._ctx, tunnel, lease_id, text))
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)

    def run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """In our own thread, where the connections are. From any other."""
        assert self._loop is not None  # noqa: S101
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _listen(self, address: str) -> None:
        from shoal.server.gateway_visits import listen

        assert self._ctx is not None  # noqa: S101
        listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, self._wanted_port()))
        except OSError:
            listener.close()
            raise
        self.port = int(listener.getsockname()[1])
        self._acceptors[address] = await listen(self._ctx, self, listener)
        self._port_file.write_text(str(self.port))
        logger.info("leases are reached at %s:%d", address, self.port)

    @property
    def _port_file(self) -> Path:
        assert self._ctx is not None  # noqa: S101
        return self._ctx.layout.server_dir / "ssh_port"

    def _wanted_port(self) -> int:
        assert self._ctx is not None  # noqa: S101
        if self.port or self._ctx.settings.ssh_port:
            return self.port or self._ctx.settings.ssh_port
        try:
            return int(self._port_file.read_text())
        except (OSError, ValueError):
            return 0

    async def _close(self) -> None:
        for acceptor in self._acceptors.values():
            acceptor.close()
        for visit in [visit for visits in self.visits.values() for visit in visits]:
            visit.leave("The server is going down; the lease goes on.")
        for tunnel in list(self.tunnels.values()):
            tunnel.close()
        for acceptor in self._acceptors.values():
            await acceptor.wait_closed()
