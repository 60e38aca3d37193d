"""The pool while the server runs: the door machines come in by, the Ray head, the engine that starts agents there, and what is
being done to machines now. The first machine turns a server into a head; with the last one, it is none any more.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp

from shoal.core.errors import Refused, ShoalError
from shoal.core.pool import Step
from shoal.engines.base import Machine
from shoal.server.door import Door

if TYPE_CHECKING:
    from shoal.engines.ray.head import Head
    from shoal.server.context import Context

logger = logging.getLogger(__name__)
ENGINE = "ray"
_AT_ONCE = 8


class Pool:
    def __init__(self) -> None:
        self._door: Door | None = None
        self._head: Head | None = None
        self._machines: list[Machine] = []
        self._steps: dict[str, list[Step]] = {}
        self._lock = threading.RLock()
        self._room = threading.Semaphore(_AT_ONCE)

    def open(self, ctx: Context, app: ASGIApp) -> None:
        """At the server's start, before anybody asks the engine for its agents."""
        from shoal.server.services import pool_join, pool_keeper

        self._door = Door(app, ctx.layout.server_dir / "door.json")
        ctx.loops.watch("agent listener", self._door.problem)
        pool_keeper.give_up_unfinished(ctx)
        if self.refresh(ctx):
            self._plug(ctx)
            self.submit(lambda: self._ensure_head(ctx, None))
        for address in {host_of(m.url) for m in self._machines} | pool_join.awaited(ctx):
            self._reopen(address)

    def close(self) -> None:
        """At its end; machines go on without us."""
        if self._door is not None:
            self._door.close()

    def submit(self, work: Callable[[], object]) -> None:
        """On a thread that nobody waits for, when the server ends."""
        threading.Thread(target=self._work, args=(work,), name="pool", daemon=True).start()

    def is_head(self, ctx: Context) -> bool:
        return ENGINE in ctx.engine.names

    def machines(self) -> list[Machine]:
        """Those that have joined, as the engine is told of them."""
        return self._machines

    def refresh(self, ctx: Context) -> list[Machine]:
        """Look at them anew, after any change."""
        from shoal.server.services import pool_rows

        self._machines = pool_rows.members(ctx)
        ctx.live.scheduler.set()
        return self._machines

    def url_for(self, address: str) -> str:
        """This server as a machine at this address sees it; the door opens there if it has to."""
        return self.url_at(our_address(address))

    def url_at(self, ours: str) -> str:
        """The door at this address of ours."""
        if ipaddress.ip_address(ours).is_global:
            raise Refused(
                f"Machines would reach this server at {ours}, a public address, and nothing they say there is encrypted.",
                hint="Put them into a private network (WireGuard, say) and add them by their addresses there.",
            )
        if self._door is None:
            raise Refused("This server takes no machines.")
        return self._door.open(ours)

    def connect(self, ctx: Context, address: str) -> str:
        """Be a head that a machine at this address can join; our URL as it sees it."""
        return self.connect_at(ctx, our_address(address))

    def connect_at(self, ctx: Context, ours: str) -> str:
        """The same, by an address of ours."""
        with self._lock:
            url = self.url_at(ours)
            # All join at one address, the one that the first of them sees.
            self._ensure_head(ctx, None if self._machines else host_of(url))
            self._plug(ctx)
        return url

    def main_address(self) -> str | None:
        """The one of ours that the machines know."""
        return next((host_of(m.url) for m in self._machines if m.url), None)

    def disconnect(self, ctx: Context) -> None:
        """If the last machine has left, and none is on its way."""
        with self._lock:
            if self._machines or self._steps or not self.is_head(ctx):
                return
            ctx.engine.remove(ENGINE).close()
            self._open_head(ctx).stop()
            if self._door is not None and len(ctx.engine.names) == 1:
                self._door.close()

    def ways(self, url: str) -> dict[str, Any]:
        """Where a machine must get through to, for it to try."""
        parts, info = urlsplit(url), self._head.info() if self._head else None
        reach = [(parts.hostname, parts.port)] + ([(info.address, info.port)] if info else [])
        return {"server": parts.hostname, "reach": reach}

    def node_order(self, name: str, *, slots: int, python: str, home: str, address: str) -> dict[str, Any]:
        """What starts a machine's Ray node. Holds the cluster's token."""
        if self._head is None:
            raise Refused("There is no cluster here yet.", hint="shoal pool add user@host")
        argv = self._head.join_argv(name, slots, python=python, home=home, address=address)
        return {"home": home, "argv": argv, "token": self._head.token_file.read_text()}

    def steps(self, machine_id: str) -> list[Step] | None:
        """What has been done so far to a machine that is being added; None if it is not."""
        found = self._steps.get(machine_id)
        return None if found is None else list(found)

    def begin(self, machine_id: str) -> list[Step]:
        return self._steps.setdefault(machine_id, [])

    def end(self, machine_id: str) -> None:
        self._steps.pop(machine_id, None)

    def _work(self, work: Callable[[], object]) -> None:
        with self._room:
            try:
                work()
            except ShoalError as error:
                logger.warning("pool: %s", error)
            except BaseException:
                logger.exception("pool")

    def _ensure_head(self, ctx: Context, address: str | None) -> None:
        self._open_head(ctx).ensure(address)

    def _open_head(self, ctx: Context) -> Head:
        from shoal.engines.ray.head import Head

        if self._head is None:
            self._head = Head(ctx.layout)
        return self._head

    def _plug(self, ctx: Context) -> None:
        from shoal.engines.ray.engine import RayEngine
        from shoal.server.services import pool_keeper

        if not self.is_head(ctx):
            agent_env = {"SHOAL_LOG_RATE_KB_S": str(ctx.settings.log_rate_kb_s)}
            ctx.engine.add(ENGINE, RayEngine(self._open_head(ctx), self.machines, agent_env=agent_env))
            pool_keeper.start(ctx)

    def _reopen(self, address: str) -> None:
        try:
            if self._door is not None and address:
                self._door.open(address)
        except ShoalError as error:
            logger.error("%s", error)


def our_address(theirs: str) -> str:
    """The address of ours that a machine there sees: by the route to it, so that no interface need be named."""
    family = socket.AF_INET6 if ":" in theirs else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((theirs, 9))
        except OSError as error:
            raise Refused(f"There is no way to {theirs} from here: {error.strerror}.", hint="ip route") from None
        return str(probe.getsockname()[0])


def host_of(url: str | None) -> str:
    return urlsplit(url or "").hostname or ""
