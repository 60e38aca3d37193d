"""Connections to the gateway: authentication, and where channels lead.

A person's lead into the lease; an agent may open none.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, cast

import asyncssh
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from shoal.agent.wire import DIRECT_HOST, GATEWAY_USER, LEASE_HOST, LEASE_PORT, TELL
from shoal.core.errors import ShoalError, TooManyTries, Unreachable
from shoal.server.leases import lease_rows
from shoal.server.leases.gateway_relay import Session
from shoal.server.leases.keys import private_text, public_line

if TYPE_CHECKING:
    from shoal.server.context import Context
    from shoal.server.leases.gateway import Gateway

logger = logging.getLogger(__name__)

_KEEPALIVE_S, _KEEPALIVES = 15, 3
_LOGIN_S = 30
_MOST_KEYS = 20
"""Public keys one connection may offer: an ssh-agent with many keys is not an attack."""
_MOST_UNAUTHENTICATED = 100
"""Most connections at one time that have not authenticated yet."""
_DISCONNECT_S = 0.3
_REACH_S = 3.0
_ANNOUNCE_S = 10.0


async def listen(ctx: Context, gateway: Gateway, listener: socket.socket) -> asyncssh.SSHAcceptor:
    """Accept SSH connections on a bound socket; each becomes a `Visit`."""
    return await asyncssh.listen(
        sock=listener,
        server_factory=lambda: Visit(ctx, gateway),
        server_host_keys=[_imported(ctx.ssh_keys.host)],
        encoding=None,
        line_editor=False,
        agent_forwarding=False,
        x11_forwarding=False,
        allow_scp=False,
        gss_host=None,
        login_timeout=_LOGIN_S,
        keepalive_interval=_KEEPALIVE_S,
        keepalive_count_max=_KEEPALIVES,
        config=None,
    )


async def inside(
    tunnel: asyncssh.SSHServerConnection, ctx: Context, *, login: str, host_key: str
) -> asyncssh.SSHClientConnection:
    """Connect, as the gateway, to the SSH server of a lease through its agent's connection (the tunnel)."""
    return await asyncssh.connect(
        LEASE_HOST,
        LEASE_PORT,
        tunnel=cast(Any, tunnel),
        username=login,
        known_hosts=([asyncssh.import_public_key(host_key)], [], []),
        client_keys=[_imported(ctx.ssh_keys.client)],
        agent_path=None,
        login_timeout=_LOGIN_S,
        config=None,
    )


async def announce_inside(ctx: Context, tunnel: asyncssh.SSHServerConnection, lease_id: str, text: str) -> None:
    """Show a text in terminals that do not pass through the gateway: opened directly at the machine, or with `ssh -J`."""
    try:
        async with asyncio.timeout(_ANNOUNCE_S):
            login, host_key = await asyncio.to_thread(lease_rows.identity, ctx, lease_id)
            async with await inside(tunnel, ctx, login=login, host_key=host_key) as inner:
                await inner.run(subsystem=TELL, input=text, encoding="utf-8")
    except (OSError, asyncssh.Error, ShoalError) as error:
        logger.warning("lease %s could not be sent the notice '%s': %s", lease_id, text, error)


class Visit(asyncssh.SSHServer):
    """One connection, of a person or an agent. It counts as a failed login until authentication has succeeded."""

    def __init__(self, ctx: Context, gateway: Gateway):
        self._ctx, self._gateway = ctx, gateway
        self.opening: lease_rows.Opening | None = None
        """Lease the person asked for; access is granted only once `auth_completed` was called."""
        self.terminals: set[asyncssh.SSHServerProcess[bytes]] = set()
        self._agent_of: str | None = None
        self._keys_tried = 0
        self._inner: asyncssh.SSHClientConnection | None = None
        self._lock = asyncio.Lock()

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._conn = conn
        if len(self._gateway.unauthenticated) >= _MOST_UNAUTHENTICATED:
            conn.abort()
        self._gateway.unauthenticated.add(self)
        self._address = str((conn.get_extra_info("peername") or ("",))[0])

    def connection_lost(self, exc: Exception | None) -> None:
        self._gateway.unauthenticated.discard(self)
        if self.opening is not None:
            self._gateway.visits[self.opening.lease_id].discard(self)
        if self._agent_of is not None and self._gateway.tunnels.get(self._agent_of) is self._conn:
            del self._gateway.tunnels[self._agent_of]
            self._gateway.direct_addresses.pop(self._agent_of, None)
        if self._inner is not None:
            self._inner.close()

    async def begin_auth(self, username: str) -> bool:
        self._login, self.opening = username, None
        if username != GATEWAY_USER:
            self._count()
            self.opening = await asyncio.to_thread(lease_rows.opening, self._ctx, username)
        return True

    def auth_completed(self) -> None:
        self._gateway.unauthenticated.discard(self)
        if self.opening is not None:
            self._gateway.tries.forgive(email=self._who, address=self._address)
            self._gateway.visits[self.opening.lease_id].add(self)

    def public_key_auth_supported(self) -> bool:
        return self._login != GATEWAY_USER

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        self._keys_tried += 1
        if self._keys_tried > _MOST_KEYS:
            raise asyncssh.PermissionDenied("Too many keys offered. Choose one: ssh -i FILE -o IdentitiesOnly=yes")
        return self.opening is not None and _line(key) in self.opening.ssh_keys

    def validate_ca_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return self.opening is not None and _line(key) == public_line(self._ctx.ssh_keys.authority)

    def password_auth_supported(self) -> bool:
        # The same answer for every login, so that it reveals neither which leases exist nor which have a password.
        return self._login == GATEWAY_USER or self._ctx.settings.ssh_passwords

    async def validate_password(self, username: str, password: str) -> bool:
        if username == GATEWAY_USER:
            self._agent_of = await asyncio.to_thread(lease_rows.of_agent, self._ctx, password)
            return self._agent_of is not None
        self._count()
        hashed = self.opening.password_hash if self.opening else None
        try:
            return await asyncio.to_thread(self._ctx.guards.passwords.verify, hashed, password)
        except Unreachable:
            return False

    def session_requested(self) -> Any:
        return self.opening is not None and Session(self)

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> Any:
        if self.opening is None:
            return False
        if (dest_host, dest_port) == (
            self.opening.login,
            22,
        ):  # `ssh -J`: encrypted end to end, the gateway only forwards it
            return self._conn.forward_tunneled_connection(cast(Any, self._tunnel()), LEASE_HOST, LEASE_PORT)
        return self._forward(dest_host, dest_port)

    def unix_connection_requested(self, dest_path: str) -> Any:
        return self.opening is not None and self._forward_unix(dest_path)

    def server_requested(self, listen_host: str, listen_port: int) -> Any:
        if self.opening is not None:
            return self._listen_inside(listen_host, listen_port)
        if self._agent_of is not None and listen_host == DIRECT_HOST:
            return self._check_direct_address(self._agent_of, listen_port)
        if self._agent_of is None or (listen_host, listen_port) != (LEASE_HOST, LEASE_PORT):
            return False
        self._gateway.tunnels[self._agent_of] = self._conn
        return asyncssh.SSHListener()

    async def inner(self) -> asyncssh.SSHClientConnection:
        """Return the connection to the SSH server of the lease, opened on first use and shared by this person's channels."""
        assert self.opening is not None  # noqa: S101
        async with self._lock:
            if self._inner is None or self._inner.is_closed():
                self._inner = await inside(
                    self._tunnel(), self._ctx, login=self.opening.login, host_key=self.opening.host_public_key
                )
            return self._inner

    async def _check_direct_address(self, lease_id: str, port: int) -> asyncssh.SSHListener:
        """Note the lease's direct address if its SSH server, known by its host key, answers at the agent's address and port."""
        try:
            async with asyncio.timeout(_REACH_S):
                _, expected = await asyncio.to_thread(lease_rows.identity, self._ctx, lease_id)
                found = await asyncssh.get_server_host_key(self._address, port, config=None)
        except (OSError, asyncssh.Error, ShoalError):
            found = None
        is_it = found is not None and _line(found) == expected
        if is_it and self._gateway.tunnels.get(lease_id) is self._conn:
            self._gateway.direct_addresses[lease_id] = (self._address, port)
        return asyncssh.SSHListener()

    def notify(self, text: str) -> None:
        """Print a text in this person's terminals."""
        for terminal in self.terminals:
            terminal.stdout.write(f"\r\n[shoal] {text}\r\n".encode())

    def disconnect(self, why: str) -> None:
        """Send the reason and close; the connection is cut after `_DISCONNECT_S` even if the other side does not answer."""
        self._conn.disconnect(asyncssh.DISC_BY_APPLICATION, why)
        asyncio.get_running_loop().call_later(_DISCONNECT_S, self._conn.abort)
        if self._inner is not None:
            self._inner.abort()

    @property
    def _who(self) -> str:
        """Key for counting failed logins; contains the address, so that nobody can lock another person out."""
        return f"{self._login} {self._address}"

    def _count(self) -> None:
        try:
            self._gateway.tries.begin(email=self._who, address=self._address)
        except TooManyTries as error:
            raise asyncssh.PermissionDenied(error.message) from None

    def _tunnel(self) -> asyncssh.SSHServerConnection:
        assert self.opening is not None  # noqa: S101
        tunnel = self._gateway.tunnels.get(self.opening.lease_id)
        if tunnel is None:
            raise asyncssh.ChannelOpenError(
                asyncssh.OPEN_CONNECT_FAILED,
                f"lease '{self.opening.name}' is offline; see: shoal machine list, shoal machine restart {self.opening.name}",
            )
        return tunnel

    async def _forward(self, host: str, port: int) -> Any:
        return await self._conn.forward_tunneled_connection(await self.inner(), host, port)

    async def _forward_unix(self, path: str) -> Any:
        return await self._conn.forward_tunneled_unix_connection(await self.inner(), path)

    async def _listen_inside(self, host: str, port: int) -> asyncssh.SSHListener:
        """Open a port inside the lease that leads to the person's machine (`ssh -R`)."""
        inner = await self.inner()

        def back(orig_host: str, orig_port: int) -> Awaitable[Any]:
            return self._conn.forward_tunneled_connection(cast(Any, self._conn), host, port)

        return await inner.create_server(cast(Any, back), host, port)


def _line(key: asyncssh.SSHKey) -> str:
    return " ".join(key.export_public_key("openssh").decode().split()[:2])


def _imported(key: Ed25519PrivateKey) -> asyncssh.SSHKey:
    return asyncssh.import_private_key(private_text(key))
