"""The pool while the server runs: the listener for machines, the cluster's head, its engine, and the machines being added now.

The server becomes a head when the first machine is added, and stops being one when the last is removed.

Why it is safe with many threads:
- `_lock` covers becoming a head (`connect_at`) and ceasing to be one (`disconnect`), so the two never overlap. It is an RLock.
- `_machines` is replaced as a whole by `refresh` and never changed in place: readers see the list before or after a change.
- `_steps[machine_id]` is created before the thread that adds the machine starts; only that thread appends to it and removes
  it; readers copy it. While an entry exists `disconnect` does nothing, so the head is not stopped during an addition.
- `submit` starts daemon threads that the server does not wait for at its end. If it ends in the middle, the machine's row
  still says "adding", and the next start marks it as failed (`supervisor.give_up_unfinished`).
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sqlalchemy import select
from starlette.types import ASGIApp

from shoal.core.errors import Refused, ShoalError
from shoal.core.pool import Step
from shoal.core.states import AttemptState
from shoal.engines.base import Machine
from shoal.engines.cluster import Cluster
from shoal.engines.kinds import pool_kind
from shoal.server.edge.certificates import PrivateCA
from shoal.server.models.jobs import Attempt
from shoal.server.pool.agent_listener import AgentListener

if TYPE_CHECKING:
    from shoal.server.context import Context

logger = logging.getLogger(__name__)
_AT_ONCE = 8
_MASKS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Variables that, if empty, hide a machine's accelerators from the daemon and all that it starts."""


class Pool:
    """State of the machine pool in this process; the lasting state is in the database (`pool.rows`)."""

    def __init__(self) -> None:
        self._listener: AgentListener | None = None
        self._cluster: Cluster | None = None
        self._machines: list[Machine] = []
        self._steps: dict[str, list[Step]] = {}
        self._lock = threading.RLock()
        self._room = threading.Semaphore(_AT_ONCE)

    def open(self, ctx: Context, app: ASGIApp) -> None:
        """Open the pool at the server's start, before the engine is asked for its running agents."""
        from shoal.server.pool import join as pool_join
        from shoal.server.pool import supervisor as pool_supervisor

        self._listener = AgentListener(
            app, ctx.layout.server_dir / "door.json", lambda: PrivateCA(ctx.layout).context(ctx.settings)
        )
        ctx.loops.watch("agent listener", self._listener.problem)
        pool_supervisor.give_up_unfinished(ctx)
        if self.refresh(ctx):
            self._add_engine(ctx)
            self.submit(lambda: self._ensure_head(ctx, None))
        for address in {host_of(m.url) for m in self._machines} | pool_join.awaited(ctx):
            self._reopen(address)
        if any((m.url or "").startswith("http://") for m in self._machines) or has_running(ctx):
            self._listener.open_before_tls()

    def close(self) -> None:
        """Close the listener at the server's end; the machines and their jobs keep running."""
        if self._listener is not None:
            self._listener.close()

    def submit(self, work: Callable[[], object]) -> None:
        """Run work on a background thread, at most `_AT_ONCE` at a time. The server does not wait for it at its end."""
        threading.Thread(target=self._work, args=(work,), name="pool", daemon=True).start()

    def is_head(self, ctx: Context) -> bool:
        return pool_kind().name in ctx.engine.names

    def machines(self) -> list[Machine]:
        """Return the machines that have joined, as the engine needs them."""
        return self._machines

    def refresh(self, ctx: Context) -> list[Machine]:
        """Read the machines from the database again; call it after every change."""
        from shoal.server.pool import pool_rows

        self._machines = pool_rows.members(ctx)
        ctx.live.scheduler.set()
        return self._machines

    def url_for(self, address: str) -> str:
        """Return this server's URL for a machine at an address; opens the listener if needed."""
        return self.url_at(our_address(address))

    def url_at(self, ours: str) -> str:
        """Return the URL of the listener at one of this server's addresses; raise if that address is public."""
        if ipaddress.ip_address(ours).is_global:
            raise Refused(
                f"Machines would reach this server at {ours}, a public address, over an unencrypted connection.",
                hint="Put them into a private network (WireGuard, say) and add them by their addresses there.",
            )
        if self._listener is None:
            raise Refused("The machine pool is disabled on this server.")
        return self._listener.open(ours)

    def connect(self, ctx: Context, address: str) -> str:
        """Make this server a head that a machine at an address can join; return the server's URL for that machine."""
        return self.connect_at(ctx, our_address(address))

    def connect_at(self, ctx: Context, ours: str) -> str:
        """Make this server a head at one of its own addresses; return its URL there."""
        with self._lock:
            url = self.url_at(ours)
            # All machines join at one address: the one that the first machine uses.
            self._ensure_head(ctx, None if self._machines else host_of(url))
            self._add_engine(ctx)
        return url

    def main_address(self) -> str | None:
        """Return the address of this server that its machines use, or None without machines."""
        return next((host_of(m.url) for m in self._machines if m.url), None)

    def ca_for(self, ctx: Context, url: str | None) -> str | None:
        """Return the certificate of our private CA if it vouches for this URL of ours, else None."""
        if url is None or not url.startswith("https://"):
            return None
        if self._listener is not None and self._listener.has(url):
            return PrivateCA(ctx.layout).pem
        return ctx.tls.ca if ctx.tls else None

    def disconnect(self, ctx: Context) -> None:
        """Stop being a head, if there are no machines left and none is being added."""
        with self._lock:
            if self._machines or self._steps or not self.is_head(ctx):
                return
            ctx.engine.remove(pool_kind().name).close()
            self._open_cluster(ctx).stop()
            if self._listener is not None and len(ctx.engine.names) == 1:
                self._listener.close()

    def probe_request(self, url: str) -> dict[str, Any]:
        """Return what a probe of a machine needs: the addresses and ports it must reach, and the packages to look for."""
        parts, cluster = urlsplit(url), self._cluster.addresses() if self._cluster else []
        reach = [(parts.hostname, parts.port), *cluster]
        return {"server": parts.hostname, "reach": reach, "packages": list(pool_kind().packages)}

    def daemon_instructions(
        self, name: str, *, slots: int, python: str, home: str, address: str, gpus: Sequence[int | str] | None = None
    ) -> dict[str, Any]:
        """Return the instructions that start a machine's daemon. They contain the cluster's token.

        `gpus`: the accelerators that the pool may use. If there are none, jobs must not see them either.
        """
        if self._cluster is None:
            raise Refused(f"The pool has no {pool_kind().title} cluster yet.", hint="shoal pool add user@host")
        join = self._cluster.join(name, slots, python=python, home=home, address=address)
        hidden = ["env", *(f"{name}=" for name in _MASKS)] if gpus is not None and not gpus else []
        return {"home": home, "argv": [*hidden, *join.argv], "token": join.token, "daemon": pool_kind().daemon()}

    def steps(self, machine_id: str) -> list[Step] | None:
        """Return the steps so far of a machine that is being added; None if it is not being added."""
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
        self._open_cluster(ctx).ensure(address)

    def _open_cluster(self, ctx: Context) -> Cluster:
        if self._cluster is None:
            self._cluster = pool_kind().open_cluster(ctx.layout)
        return self._cluster

    def _add_engine(self, ctx: Context) -> None:
        from shoal.server.engines.service import agent_env
        from shoal.server.pool import supervisor as pool_supervisor

        if not self.is_head(ctx):
            engine = self._open_cluster(ctx).open_engine(self.machines, agent_env(ctx.settings))
            ctx.engine.add(pool_kind().name, engine)
            pool_supervisor.start(ctx)

    def _reopen(self, address: str) -> None:
        try:
            if self._listener is not None and address:
                self._listener.open(address)
        except ShoalError as error:
            logger.error("%s", error)


def has_running(ctx: Context) -> bool:
    """Return whether an attempt may have agents on other machines now."""
    with ctx.db.read() as session:
        return session.scalar(select(Attempt.id).where(Attempt.state != AttemptState.ENDED.value).limit(1)) is not None


def our_address(theirs: str) -> str:
    """Return the address of this server that a machine at `theirs` reaches, found by the route to it."""
    family = socket.AF_INET6 if ":" in theirs else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((theirs, 9))
        except OSError as error:
            raise Refused(
                f"There is no route from this server to {theirs}: {error.strerror}.", hint="ip route"
            ) from None
        return str(probe.getsockname()[0])


def host_of(url: str | None) -> str:
    return urlsplit(url or "").hostname or ""
