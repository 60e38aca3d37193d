"""The agent's part of a lease: the way from the gateway to the SSH server in the sandbox, and the end of the lease's time.

Both need nobody: the way is opened from here, again and again if need be, and the end comes also while the server is away.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from shoal.agent.door import Door
from shoal.agent.link import backoff, present_url
from shoal.agent.volume import dial
from shoal.agent.wire import DIRECT_HOST, GATEWAY_USER, LEASE_HOST, LEASE_PORT, LEASE_SOCKET, Launch

if TYPE_CHECKING:
    from shoal.agent.reporting import Orders

logger = logging.getLogger(__name__)

OVER = "its time was over"
_LATE_S = 0.5
"""The server ends it first where it can: then it is known to have ended, and not to have been lost."""
_LEAST_S, _MOST_S = 0.2, 3.0
_LOOK_S = 0.02
_KEEPALIVE_S, _KEEPALIVES = 5, 3
_LOGIN_S = 15


class Lease:
    def __init__(self, launch: Launch, order: dict[str, Any], folder: Path, orders: Orders):
        """`folder`: where the SSH server's socket will be."""
        self._orders = orders
        self._changed = threading.Condition()
        self._deadline = time.monotonic() + float(order["left_s"])
        orders.most_grace_s = 0.0
        orders.on_left = self._set_left
        folder.mkdir(parents=True, exist_ok=True)
        threading.Thread(target=self._end_in_time, name="lease", daemon=True).start()
        Tunnel(launch, order, folder).start()

    @property
    def ended(self) -> bool:
        """Its time is over, or it was given back: what it leaves is to be put away."""
        return time.monotonic() >= self._deadline

    def _set_left(self, left_s: float) -> None:
        with self._changed:
            self._deadline = time.monotonic() + left_s
            self._changed.notify_all()

    def _end_in_time(self) -> None:
        with self._changed:
            while (left_s := self._deadline + _LATE_S - time.monotonic()) > 0:
                self._changed.wait(left_s)
        self._orders.give(stop=True, why=OVER)


class Tunnel(threading.Thread):
    """A connection to the gateway, kept; over it come as many to the socket as there are people."""

    def __init__(self, launch: Launch, order: dict[str, Any], folder: Path):
        super().__init__(name="tunnel", daemon=True)
        self._launch, self._order, self._folder = launch, order, folder
        self._closing = threading.Event()
        self._connection: Any = None
        self._loop: Any = None
        self._door: Door | None = None

    def close(self) -> None:
        self._closing.set()
        if self._loop is not None and self._connection is not None:
            self._loop.call_soon_threadsafe(self._connection.abort)

    def run(self) -> None:
        import asyncio

        asyncio.run(self._keep())

    async def _keep(self) -> None:
        import asyncio

        logging.getLogger("asyncssh").setLevel(logging.WARNING)
        self._loop = asyncio.get_running_loop()
        while not (self._folder / LEASE_SOCKET).exists():
            if self._closing.is_set():
                return
            await asyncio.sleep(_LOOK_S)
        # That very one, whatever the person inside puts in its place later.
        path = dial(self._folder / LEASE_SOCKET)
        waits, said = backoff(_LEAST_S, _MOST_S), ""
        while not self._closing.is_set():
            try:
                async with self._connect() as connection:
                    self._connection = connection
                    await connection.forward_remote_port_to_path(LEASE_HOST, LEASE_PORT, path)
                    logger.info("people reach this lease by the gateway")
                    waits, said = backoff(_LEAST_S, _MOST_S), ""
                    if self._order.get("direct"):
                        await self._offer(connection, path)
                    await connection.wait_closed()
            except Exception as error:  # of whatever kind: without this connection nobody reaches the lease
                if str(error) != said:
                    logger.warning("the gateway: %s", error)
                said = str(error)
            await asyncio.sleep(next(waits))

    async def _offer(self, connection: Any, path: str) -> None:
        """A port at the address by which we reach the gateway; that finds out whether it can be reached."""
        address, gateway = (str(connection.get_extra_info(side)[0]) for side in ("sockname", "peername"))
        if address == gateway:
            return  # on the same machine there is nothing to save
        self._door = self._door or Door(path)
        try:
            port = await self._door.open(address)
        except OSError as error:
            logger.warning("no port at %s: %s", address, error)
            return
        await connection.forward_remote_port_to_path(DIRECT_HOST, port, path)

    def _connect(self) -> Any:
        import asyncssh

        url = present_url(self._launch.server_file, self._launch.instance) or self._launch.url
        return asyncssh.connect(
            urlsplit(url).hostname or "127.0.0.1",
            int(self._order["gateway_port"]),
            username=GATEWAY_USER,
            password=self._launch.token,
            known_hosts=([asyncssh.import_public_key(self._order["gateway_key"])], [], []),
            preferred_auth="password",
            client_keys=None,
            agent_path=None,
            config=None,
            login_timeout=_LOGIN_S,
            keepalive_interval=_KEEPALIVE_S,
            keepalive_count_max=_KEEPALIVES,
        )
