"""Ports for the JupyterLab of running jobs. Each job has its own port, and so its own origin in the browser.

Requests are forwarded through the agent's connection to the SSH gateway. All state is in memory: after a restart of the server
a JupyterLab that still runs is found again in its job.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import secrets
import threading
import time
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.core.errors import InvalidSpec, NotAllowedNow, Refused, ShoalError
from shoal.server.edge.exposure import url_of

if TYPE_CHECKING:
    import asyncssh

    from shoal.server.context import Context
    from shoal.server.jobs.attach_sessions import AttachEndpoint

_COMMAND = "exec python -m shoal.agent.workers.jupyter 2>&1"
_START_S = 150.0
_TRIES, _RETRY_S = 5, 1.0
_MOST_OUTPUT = 64 << 10
_CODE_S = 60.0
_MOST_GUESTS = 1_000
_TOKEN = re.compile(r"[A-Za-z0-9_-]{32,128}")
_PORTS = re.compile(r"(\d+)-(\d+)")
_OTHER_NAME = {"127.0.0.1": "localhost", "localhost": "127.0.0.1"}
"""Ports of one host share cookies. On a local server the second name keeps Jupyter's apart from the console's."""


@dataclass(frozen=True, slots=True)
class Guest:
    """Person whose browser has access; checked again with every request."""

    session_id: str
    user_id: str
    workspace_id: str


class Lab:
    """JupyterLab of one job: its port, its connection into the job and the browsers that have access."""

    def __init__(self, ctx: Context, endpoint: AttachEndpoint, socket: str, token: str):
        self.ctx, self.endpoint, self.socket, self.token = ctx, endpoint, socket, token
        self.port = 0
        self.visits: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._connection: asyncssh.SSHClientConnection | None = None
        self._lock = asyncio.Lock()
        self._codes: dict[str, tuple[Guest, float]] = {}
        self._guests: dict[str, Guest] = {}

    def offer(self, guest: Guest) -> str:
        """Return a code that gives a person's browser access once, within a minute."""
        now, code = time.monotonic(), secrets.token_urlsafe(32)
        self._codes = {key: known for key, known in self._codes.items() if known[1] > now}
        self._codes[_hashed(code)] = (guest, now + _CODE_S)
        return code

    def admit(self, code: str) -> str | None:
        """Exchange a code for the token of the browser's cookie; None if the code is unknown, used or expired."""
        guest, until = self._codes.pop(_hashed(code), (None, 0.0))
        if guest is None or until <= time.monotonic():
            return None
        token = secrets.token_urlsafe(32)
        if len(self._guests) >= _MOST_GUESTS:
            self._guests.pop(next(iter(self._guests)))
        self._guests[_hashed(token)] = guest
        return token

    def guest(self, token: str) -> Guest | None:
        return self._guests.get(_hashed(token)) if token else None

    async def dial(self) -> tuple[asyncssh.SSHReader[bytes], asyncssh.SSHWriter[bytes]]:
        return await (await self.connection()).open_unix_connection(self.socket)

    async def connection(self) -> asyncssh.SSHClientConnection:
        """Return the SSH connection into the job; it is opened again after the agent has reconnected."""
        from shoal.server.leases.gateway_visits import inside

        async with self._lock:
            if self._connection is None or self._connection.is_closed():
                tunnel = self.ctx.gateway.tunnels.get(self.endpoint.id)
                if tunnel is None:
                    raise ConnectionError("The job's agent is not connected.")
                self._connection = await inside(tunnel, self.ctx, login="jupyter", host_key=self.endpoint.public_key)
            return self._connection

    async def listen(self) -> None:
        from shoal.server.jupyter.proxy import visit

        for port in _ports(self.ctx.settings.jupyter_ports):
            try:
                self._server = await asyncio.start_server(
                    lambda reader, writer: visit(self, reader, writer),
                    self.ctx.settings.host,
                    port,
                    ssl=self.ctx.tls.context if self.ctx.tls else None,
                )
            except OSError:
                continue
            self.port = int(self._server.sockets[0].getsockname()[1])
            return
        raise Refused(f"No port is free for Jupyter: {self.ctx.settings.jupyter_ports}.", hint="shoal server log")

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self.visits:
            task.cancel()
        if self._connection is not None:
            self._connection.abort()


class Labs:
    """All open JupyterLabs by endpoint id (attempt and node).

    `_lock` protects changes of the two dictionaries. The start itself runs in the gateway's thread, without the lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._labs: dict[str, Lab] = {}
        self._starting: dict[str, Future[Lab]] = {}

    def get(self, endpoint_id: str) -> Lab | None:
        return self._labs.get(endpoint_id)

    def of_attempt(self, attempt_id: str | None) -> bool:
        """Check whether a JupyterLab is open in an attempt."""
        return any(_attempt(endpoint_id) == attempt_id for endpoint_id in list(self._labs))

    def open(self, ctx: Context, endpoint: AttachEndpoint) -> Lab | None:
        """Return a job's JupyterLab; None while it starts. A failed start is raised once; the next call starts it again."""
        with self._lock:
            if endpoint.id in self._labs:
                return self._labs[endpoint.id]
            starting = self._starting.get(endpoint.id)
            if starting is None:
                self._starting[endpoint.id] = ctx.gateway.run(_begin(ctx, endpoint))
                return None
            if not starting.done():
                return None
            del self._starting[endpoint.id]
            self._labs[endpoint.id] = starting.result()
            return self._labs[endpoint.id]

    def forget(self, lab: Lab) -> None:
        """Close a JupyterLab that does not answer; the next `open` starts it again."""
        with self._lock:
            if self._labs.get(lab.endpoint.id) is lab:
                del self._labs[lab.endpoint.id]
        lab.ctx.gateway.run(lab.close())

    def keep_only(self, attempts: Collection[str]) -> None:
        """Close the JupyterLabs of all other attempts, which have ended."""
        for lab in [lab for endpoint_id, lab in list(self._labs.items()) if _attempt(endpoint_id) not in attempts]:
            self.forget(lab)
        with self._lock:
            self._starting = {
                endpoint_id: starting
                for endpoint_id, starting in self._starting.items()
                if _attempt(endpoint_id) in attempts
            }

    def close(self) -> None:
        """Close all; call it before the gateway is closed."""
        self.keep_only(())


def url(ctx: Context, lab: Lab, *, scheme: str, host: str) -> str:
    """Return the URL of a JupyterLab's origin. `scheme`, `host`: those with which the person opened the console."""
    if ctx.settings.jupyter_url:
        return ctx.settings.jupyter_url.replace("{port}", str(lab.port)).rstrip("/")
    own_tls = ctx.tls is not None and scheme == "https"
    if scheme != "http" and not own_tls:
        raise Refused(
            "Behind TLS, Jupyter needs its own address, and this server has none configured.",
            hint="an admin sets jupyter_url and jupyter_ports; see docs/howto/interactive.md",
        )
    name = _OTHER_NAME.get(host, host)
    return url_of("https" if own_tls else "http", name, lab.port)


async def _begin(ctx: Context, endpoint: AttachEndpoint) -> Lab:
    lab = Lab(ctx, endpoint, "", "")
    try:
        async with asyncio.timeout(_START_S):
            found = await _start_with_retries(lab)
    except ShoalError:
        await lab.close()
        raise
    except Exception as error:  # asyncssh errors, and anything that the job's output causes
        await lab.close()
        raise NotAllowedNow(
            f"Jupyter cannot be started in job '{endpoint.job}': {error or 'it takes too long'}"
        ) from error
    lab.socket, lab.token = found
    await lab.listen()
    return lab


async def _start_with_retries(lab: Lab) -> tuple[str, str]:
    """Start JupyterLab; retried while the agent reconnects, for example after a restart of the server."""
    import asyncssh

    for left in reversed(range(_TRIES)):
        try:
            return await _start_jupyter(await lab.connection())
        except (OSError, asyncssh.Error):
            if not left:
                raise
            await asyncio.sleep(_RETRY_S)
    raise AssertionError


async def _start_jupyter(connection: asyncssh.SSHClientConnection) -> tuple[str, str]:
    """Start JupyterLab in the job (or find it) and return its socket and token.

    The output comes from the job and is not trusted: it is limited in length, and the token must match `_TOKEN`.
    """
    output = b""
    async with connection.create_process(_COMMAND, encoding=None) as process:
        while len(output) < _MOST_OUTPUT and (more := await process.stdout.read(4096)):
            output += more
        process.close()
    lines = output.decode(errors="replace").strip().splitlines()
    try:
        found: dict[str, Any] = json.loads(lines[-1])
        if "problem" in found:
            raise NotAllowedNow(_plain(found["problem"]), hint=_plain(found["hint"]) or None)
        path, token = str(found["socket"]), str(found["token"])
    except (IndexError, KeyError, TypeError, ValueError):
        raise NotAllowedNow(f"Jupyter cannot be started: {_plain(lines[-1] if lines else 'no answer')}") from None
    if not _TOKEN.fullmatch(token):
        raise NotAllowedNow("Jupyter cannot be started: its token is not valid.")
    return path, token


def _plain(text: object) -> str:
    return "".join(c if c.isprintable() else " " for c in str(text))[:1_000]


def _ports(setting: str) -> Collection[int]:
    if not setting:
        return (0,)
    found = _PORTS.fullmatch(setting.strip())
    if found is None:
        raise InvalidSpec(f"jupyter_ports is {setting!r}; it must look like '41000-41099'.")
    return range(int(found[1]), int(found[2]) + 1)


def _attempt(endpoint_id: str) -> str:
    return endpoint_id.rpartition(".")[0]


def _hashed(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
