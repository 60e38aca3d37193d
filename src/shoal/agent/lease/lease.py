"""The agent's part of a lease: the tunnel from the gateway to the SSH server in the sandbox, and the end of the lease's time.

Neither depends on the server: the agent opens the tunnel, again after each failure, and ends the lease even during an outage.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from shoal.agent.lease.listener import DirectListener
from shoal.agent.lease.volume import dial
from shoal.agent.link import backoff, present_url
from shoal.agent.wire import DIRECT_HOST, GATEWAY_USER, LEASE_HOST, LEASE_PORT, LEASE_SOCKET, Launch

if TYPE_CHECKING:
    from shoal.agent.node.heartbeat import NodeControl

logger = logging.getLogger(__name__)

OVER = "its time ran out"
_LATE_S = 0.5
"""Seconds after the end of the lease until the agent ends it.

The server does so first if it can; else the node would look lost.
"""
_LEAST_S, _MOST_S = 0.2, 3.0
_POLL_S = 0.02
_KEEPALIVE_S, _KEEPALIVES = 5, 3
_LOGIN_S = 15


class Lease:
    """Ends the lease in time and keeps the tunnel open. `_changed` guards the deadline, which every heartbeat may move."""

    def __init__(self, launch: Launch, details: dict[str, Any], folder: Path, control: NodeControl):
        """Start the threads.

        `folder` is where the SSH server's socket will be; `details` describes the lease and the gateway.
        """
        self._control = control
        self._changed = threading.Condition()
        self._deadline = time.monotonic() + float(details["left_s"])
        control.most_grace_s = 0.0
        control.on_left = self._set_left
        folder.mkdir(parents=True, exist_ok=True)
        threading.Thread(target=self._end_in_time, name="lease", daemon=True).start()
        Tunnel(launch, details, folder).start()

    @property
    def ended(self) -> bool:
        """True if the lease's time is over or it was returned, so that its volume must be uploaded and wiped."""
        return time.monotonic() >= self._deadline

    def _set_left(self, left_s: float) -> None:
        with self._changed:
            self._deadline = time.monotonic() + left_s
            self._changed.notify_all()

    def _end_in_time(self) -> None:
        with self._changed:
            while (left_s := self._deadline + _LATE_S - time.monotonic()) > 0:
                self._changed.wait(left_s)
        self._control.request(stop=True, why=OVER)


class Tunnel(threading.Thread):
    """Thread that keeps a connection to the gateway open, which forwards all SSH connections to the socket."""

    def __init__(self, launch: Launch, details: dict[str, Any], folder: Path):
        super().__init__(name="tunnel", daemon=True)
        self._launch, self._details, self._folder = launch, details, folder
        self._closing = threading.Event()
        self._connection: Any = None
        self._loop: Any = None
        self._listener: DirectListener | None = None

    def close(self) -> None:
        self._closing.set()
        if self._loop is not None and self._connection is not None:
            self._loop.call_soon_threadsafe(self._connection.abort)

    def run(self) -> None:
        import asyncio

        asyncio.run(self._stay_connected())

    async def _stay_connected(self) -> None:
        import asyncio

        logging.getLogger("asyncssh").setLevel(logging.WARNING)
        self._loop = asyncio.get_running_loop()
        while not (self._folder / LEASE_SOCKET).exists():
            if self._closing.is_set():
                return
            await asyncio.sleep(_POLL_S)
        # Keep using this very socket, even if the person inside replaces it later.
        path = dial(self._folder / LEASE_SOCKET)
        waits, said = backoff(_LEAST_S, _MOST_S), ""
        while not self._closing.is_set():
            try:
                async with self._connect() as connection:
                    self._connection = connection
                    await connection.forward_remote_port_to_path(LEASE_HOST, LEASE_PORT, path)
                    logger.info("connected to the SSH gateway")
                    waits, said = backoff(_LEAST_S, _MOST_S), ""
                    if self._details.get("direct"):
                        await self._offer(connection, path)
                    await connection.wait_closed()
            except Exception as error:  # any kind: without this connection the lease cannot be reached
                if str(error) != said:
                    logger.warning("connection to the SSH gateway: %s", error)
                said = str(error)
            await asyncio.sleep(next(waits))

    async def _offer(self, connection: Any, path: str) -> None:
        """Open a direct port and report it to the gateway, which checks whether it is reachable.

        The port is at the address that this machine uses to reach the gateway.
        """
        address, gateway = (str(connection.get_extra_info(side)[0]) for side in ("sockname", "peername"))
        if address == gateway:
            return  # on the same machine a direct port has no advantage
        self._listener = self._listener or DirectListener(path)
        try:
            port = await self._listener.open(address)
        except OSError as error:
            logger.warning("cannot open a direct port at %s: %s", address, error)
            return
        await connection.forward_remote_port_to_path(DIRECT_HOST, port, path)

    def _connect(self) -> Any:
        import asyncssh

        url = present_url(self._launch.server_file, self._launch.instance) or self._launch.url
        return asyncssh.connect(
            urlsplit(url).hostname or "127.0.0.1",
            int(self._details["gateway_port"]),
            username=GATEWAY_USER,
            password=self._launch.token,
            known_hosts=([asyncssh.import_public_key(self._details["gateway_key"])], [], []),
            preferred_auth="password",
            client_keys=None,
            agent_path=None,
            config=None,
            login_timeout=_LOGIN_S,
            keepalive_interval=_KEEPALIVE_S,
            keepalive_count_max=_KEEPALIVES,
        )
