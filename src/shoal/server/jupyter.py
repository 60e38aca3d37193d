"""JupyterLab of running jobs, as browsers reach it: each on a port of its own, hence an origin of its own, and from there through
the agent's connection to the gateway. In memory: after a restart of the server each is found again where it runs.
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

if TYPE_CHECKING:
    import asyncssh

    from shoal.server.attached import Door
    from shoal.server.context import Context

_COMMAND = "exec python -m shoal.agent.jupyter 2>&1"
_START_S = 150.0
_TRIES, _AGAIN_S = 5, 1.0
_MOST_SAID = 64 << 10
_CODE_S = 60.0
_MOST_GUESTS = 1_000
_TOKEN = re.compile(r"[A-Za-z0-9_-]{32,128}")
_PORTS = re.compile(r"(\d+)-(\d+)")
_OTHER_NAME = {"127.0.0.1": "localhost", "localhost": "127.0.0.1"}
"""Ports of one host share their cookies; on one's own machine there are two names to tell them apart by."""


@dataclass(frozen=True, slots=True)
class Guest:
    """Whose browser it is: looked at again with every request."""

    session_id: str
    user_id: str
    workspace_id: str


class Lab:
    """One job's."""

    def __init__(self, ctx: Context, door: Door, socket: str, token: str):
        self.ctx, self.door, self.socket, self.token = ctx, door, socket, token
        self.port = 0
        self.visits: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._connection: asyncssh.SSHClientConnection | None = None
        self._lock = asyncio.Lock()
        self._codes: dict[str, tuple[Guest, float]] = {}
        self._guests: dict[str, Guest] = {}

    def offer(self, guest: Guest) -> str:
        """A code that lets their browser in once, within a minute."""
        now, code = time.monotonic(), secrets.token_urlsafe(32)
        self._codes = {key: known for key, known in self._codes.items() if known[1] > now}
        self._codes[_hashed(code)] = (guest, now + _CODE_S)
        return code

    def admit(self, code: str) -> str | None:
        """What the browser shows from now on, for a code that is good."""
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
        """Into the job; opened again when its agent has come back."""
        from shoal.server.gateway_visits import inside

        async with self._lock:
            if self._connection is None or self._connection.is_closed():
                tunnel = self.ctx.gateway.tunnels.get(self.door.id)
                if tunnel is None:
                    raise ConnectionError("The job's agent is away.")
                self._connection = await inside(tunnel, self.ctx, login="jupyter", host_key=self.door.public_key)
            return self._connection

    async def listen(self) -> None:
        from shoal.server.jupyter_proxy import visit

        for port in _ports(self.ctx.settings.jupyter_ports):
            try:
                self._server = await asyncio.start_server(
                    lambda reader, writer: visit(self, reader, writer), self.ctx.settings.host, port
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
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._labs: dict[str, Lab] = {}
        self._coming: dict[str, Future[Lab]] = {}

    def get(self, door_id: str) -> Lab | None:
        return self._labs.get(door_id)

    def of_attempt(self, attempt_id: str | None) -> bool:
        """Whether one is open in it."""
        return any(_attempt(door_id) == attempt_id for door_id in list(self._labs))

    def open(self, ctx: Context, door: Door) -> Lab | None:
        """The job's; None while it starts. Raises what went wrong, and then begins anew when asked again."""
        with self._lock:
            if door.id in self._labs:
                return self._labs[door.id]
            coming = self._coming.get(door.id)
            if coming is None:
                self._coming[door.id] = ctx.gateway.run(_begin(ctx, door))
                return None
            if not coming.done():
                return None
            del self._coming[door.id]
            self._labs[door.id] = coming.result()
            return self._labs[door.id]

    def forget(self, lab: Lab) -> None:
        """Nobody answers there any more: whoever asks next has it started again."""
        with self._lock:
            if self._labs.get(lab.door.id) is lab:
                del self._labs[lab.door.id]
        lab.ctx.gateway.run(lab.close())

    def keep_only(self, attempts: Collection[str]) -> None:
        """The others have ended."""
        for lab in [lab for door_id, lab in list(self._labs.items()) if _attempt(door_id) not in attempts]:
            self.forget(lab)
        with self._lock:
            self._coming = {
                door_id: coming for door_id, coming in self._coming.items() if _attempt(door_id) in attempts
            }

    def close(self) -> None:
        """Before the gateway."""
        self.keep_only(())


def url(ctx: Context, lab: Lab, *, scheme: str, host: str) -> str:
    """Of its origin. `scheme`, `host`: by which the person reaches the console."""
    if ctx.settings.jupyter_url:
        return ctx.settings.jupyter_url.replace("{port}", str(lab.port)).rstrip("/")
    if scheme != "http":
        raise Refused(
            "Behind TLS, Jupyter needs an address of its own, which this server has not been told.",
            hint="an admin sets jupyter_url and jupyter_ports; see docs/howto/interactive.md",
        )
    name = _OTHER_NAME.get(host, host)
    return f"http://[{name}]:{lab.port}" if ":" in name else f"http://{name}:{lab.port}"


async def _begin(ctx: Context, door: Door) -> Lab:
    lab = Lab(ctx, door, "", "")
    try:
        async with asyncio.timeout(_START_S):
            found = await _reach(lab)
    except ShoalError:
        await lab.close()
        raise
    except Exception as error:  # asyncssh's too, and whatever the job makes of it
        await lab.close()
        raise NotAllowedNow(f"Jupyter cannot be started in job '{door.job}': {error or 'it takes too long'}") from error
    lab.socket, lab.token = found
    await lab.listen()
    return lab


async def _reach(lab: Lab) -> tuple[str, str]:
    """As long as its agent only lost its way, as when the server was away, it is asked again."""
    import asyncssh

    for left in reversed(range(_TRIES)):
        try:
            return await _ask(await lab.connection())
        except (OSError, asyncssh.Error):
            if not left:
                raise
            await asyncio.sleep(_AGAIN_S)
    raise AssertionError


async def _ask(connection: asyncssh.SSHClientConnection) -> tuple[str, str]:
    """(socket, token). What answers is the job's, so it is bounded and believed in nothing else."""
    said = b""
    async with connection.create_process(_COMMAND, encoding=None) as process:
        while len(said) < _MOST_SAID and (more := await process.stdout.read(4096)):
            said += more
        process.close()
    lines = said.decode(errors="replace").strip().splitlines()
    try:
        found: dict[str, Any] = json.loads(lines[-1])
        if "problem" in found:
            raise NotAllowedNow(_plain(found["problem"]), hint=_plain(found["hint"]) or None)
        path, token = str(found["socket"]), str(found["token"])
    except (IndexError, KeyError, TypeError, ValueError):
        raise NotAllowedNow(f"Jupyter cannot be started: {_plain(lines[-1] if lines else 'no answer')}") from None
    if not _TOKEN.fullmatch(token):
        raise NotAllowedNow("Jupyter cannot be started: its token is none.")
    return path, token


def _plain(text: object) -> str:
    return "".join(c if c.isprintable() else " " for c in str(text))[:1_000]


def _ports(setting: str) -> Collection[int]:
    if not setting:
        return (0,)
    found = _PORTS.fullmatch(setting.strip())
    if found is None:
        raise InvalidSpec(f"jupyter_ports is {setting!r}, and should look like '41000-41099'.")
    return range(int(found[1]), int(found[2]) + 1)


def _attempt(door_id: str) -> str:
    return door_id.rpartition(".")[0]


def _hashed(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
