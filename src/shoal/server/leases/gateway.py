"""The SSH gateway: one port through which people reach their leases.

Agents open a connection to the same port, so no machine needs an open port of its own. A person's channels are forwarded
through the agent's connection to the SSH server inside the lease.

Threads: the connections and the dictionaries below belong to the gateway's own thread, which runs an asyncio loop. Other
threads hand work to it with `run` or `call_soon_threadsafe` and only read single dictionary entries. `_lock` makes sure the
thread is started once. Nothing here is durable: after a crash the agents reconnect and the dictionaries fill again.
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

from shoal.core.background_loops import Problem
from shoal.core.errors import MissingExtra, Refused
from shoal.server.models.leases import Lease
from shoal.server.people.guards import Tries
from shoal.server.pool.cluster import host_of

if TYPE_CHECKING:
    import asyncssh

    from shoal.server.context import Context
    from shoal.server.leases.gateway_visits import Visit

logger = logging.getLogger(__name__)
T = TypeVar("T")
_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104
_CLOSE_S = 5.0


class Gateway:
    """SSH gateway of the server: its listening sockets, its thread and the connections of agents and people."""

    def __init__(self) -> None:
        self.port: int | None = None
        self.problem: str | None = None
        """Reason why leases cannot be reached, or None."""
        self.tries = Tries()
        self.tunnels: dict[str, asyncssh.SSHServerConnection] = {}
        """Lease id → connection of the agent that runs it."""
        self.direct_addresses: dict[str, tuple[str, int]] = {}
        """Lease id → address and port on its own machine, for leases that the server could reach there directly."""
        self.visits: defaultdict[str, set[Visit]] = defaultdict(set)
        self.unauthenticated: set[Visit] = set()
        self._acceptors: dict[str, asyncssh.SSHAcceptor] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ctx: Context | None = None
        self._announcements: set[asyncio.Future[None]] = set()
        self._lock = threading.Lock()

    @staticmethod
    def is_installed() -> bool:
        return importlib.util.find_spec("asyncssh") is not None

    def open(self, ctx: Context) -> None:
        """Open the gateway if there are running leases; called when the server starts, after the pool.

        Running leases become reachable again as soon as their agents have reconnected.
        """
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
            logger.warning("gateway connections did not close within %g s", _CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = None

    def demand(self) -> None:
        """Open the gateway if it is not open yet; raise if leases cannot be reached."""
        if not self.is_installed():
            raise MissingExtra(
                "Leases need a package that is not installed on the server.", hint="pip install 'shoal-train[machines]'"
            )
        with self._lock:
            if self._loop is None and self._ctx is not None:
                self._start(self._ctx)
        if self.problem is not None:
            raise Refused(f"Leases cannot be reached: {self.problem}.", hint="shoal server log")

    def name_for(self, host: str) -> str:
        """Return the host name to show for the gateway: the first of setting `hosts`, else the name the client used."""
        if self._ctx is None:
            return host
        names = [name for name in self._ctx.settings.hosts.split(",") if name.strip()]
        return names[0].strip() if names else host or self._ctx.settings.host

    def listen_at(self, address: str) -> None:
        """Listen at one more address of this server, on the same port as all others."""
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
        """Close all sessions of a lease and its agent's connection. May be called from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._drop, lease_id)

    def notify(self, lease_id: str, text: str) -> None:
        """Print a text in every terminal that is open on a lease. May be called from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._notify, lease_id, text)

    def _start(self, ctx: Context) -> None:
        """Start the thread and listen. Done on first need, because importing asyncssh slows down every server start."""
        logging.getLogger("asyncssh").setLevel(logging.WARNING)  # it logs every connection and channel
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
            visit.disconnect("This lease has ended.")
        self.direct_addresses.pop(lease_id, None)
        tunnel = self.tunnels.pop(lease_id, None)
        if tunnel is not None:
            tunnel.abort()

    def _notify(self, lease_id: str, text: str) -> None:
        for visit in list(self.visits.get(lease_id, ())):
            visit.notify(text)
        if (tunnel := self.tunnels.get(lease_id)) is not None and self._ctx is not None:
            from shoal.server.leases.gateway_visits import announce_inside

            announcement = asyncio.ensure_future(announce_inside(self._ctx, tunnel, lease_id, text))
            self._announcements.add(announcement)
            announcement.add_done_callback(self._announcements.discard)

    def run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the gateway's thread, which owns the connections. Must be called from another thread."""
        assert self._loop is not None  # noqa: S101
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _listen(self, address: str) -> None:
        from shoal.server.leases.gateway_visits import listen

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
            visit.disconnect("The server is shutting down; the lease keeps running.")
        for tunnel in list(self.tunnels.values()):
            tunnel.close()
        for acceptor in self._acceptors.values():
            await acceptor.wait_closed()
