"""Sources of a swarm's state: the peers that hold it, the server's last checkpoint and this machine's disk."""

from __future__ import annotations

import functools
import logging
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
from hivemind.p2p import PeerID

from shoal.core.errors import Corrupt
from shoal.core.swarm_views import SwarmStateView
from shoal.core.tls import context_for
from shoal.swarm import states as state_folders
from shoal.swarm.agreement import Agreed
from shoal.swarm.averaging.exchange import prefix_of
from shoal.swarm.averaging.wire import State, download
from shoal.swarm.records import Progress
from shoal.swarm.settings import Settings

logger = logging.getLogger(__name__)

_KEEP = 6
"""States kept on disk."""
_TRIES = 20
"""Requests for one file before the download fails."""
_SERVER_S = 30.0
"""Timeout of a request to the server."""


def from_peers(
    dht: Any, run_id: str, goal: Agreed, records: Iterable[Progress], silent: set[str], *, timeout_s: float = 600.0
) -> Iterator[State]:
    """Yield the states of all peers that serve one, starting with those that claim to hold `goal`.

    A peer may have moved on to a newer state, or lie: the caller must compare the hash. A peer that sends nothing, perhaps
    because it is dead, is added to `silent`.
    """
    likely = {record.p2p: None for record in goal.holders if record.serves_state}
    others = {record.p2p: None for record in records if record.serves_state and record.state != "leaving"}
    for holder in [p2p for p2p in likely | others if p2p not in silent]:
        request = functools.partial(_download, holder=holder, prefix=prefix_of(run_id))
        try:
            found: State | str = dht.run_coroutine(request, return_future=True).result(timeout=timeout_s)
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        if isinstance(found, State):
            yield found
        else:
            silent.add(holder)
            logger.info("shoal: peer %s did not send its state: %s", holder, found)


async def _download(_dht: Any, node: Any, *, holder: str, prefix: str) -> State | str:
    """Return a peer's state, or the reason why there is none. Runs in the DHT's process, which has the p2p connection."""
    try:
        return await download(node.protocol.p2p, PeerID.from_base58(holder), prefix)
    except Exception as error:  # p2p, time-out or bad content: the caller asks the next peer
        return f"{type(error).__name__}: {error}"


def request_state(dht: Any, run_id: str, goal: Agreed) -> Any:
    """Return a future of the state the swarm has agreed on, from the first holder that sends it; of None if none does."""
    holders = [record.p2p for record in goal.holders if record.serves_state]
    request = functools.partial(_download_first, holders=holders, prefix=prefix_of(run_id), wanted=goal.hash)
    return dht.run_coroutine(request, return_future=True)


async def _download_first(_dht: Any, node: Any, *, holders: Sequence[str], prefix: str, wanted: str) -> State | None:
    for holder in holders:
        found = await _download(_dht, node, holder=holder, prefix=prefix)
        if isinstance(found, State) and found.hash == wanted:
            return found
        why = "it holds a different state now" if isinstance(found, State) else found
        logger.info("shoal: peer %s did not send the requested state: %s", holder, why)
    return None


def from_server(settings: Settings, wanted: str | None = None) -> State | None:
    """Return the server's newest state; None if it has none, is unreachable, or its state's hash is not `wanted`."""
    if settings.snapshot_url is None:
        return None
    headers = {"Authorization": f"Bearer {settings.token}"} if settings.token else {}
    try:
        tls = context_for() if settings.snapshot_url.startswith("https://") else False
        with (
            httpx.Client(headers=headers, timeout=_SERVER_S, verify=tls) as client,
            tempfile.TemporaryDirectory() as folder,
        ):
            reply = client.get(settings.snapshot_url)
            reply.raise_for_status()
            view = SwarmStateView.model_validate_json(reply.content)
            if wanted not in (None, view.hash):
                return None
            for file in view.files:
                _fetch(client, f"{settings.snapshot_url}/{view.id}/{file.path}", Path(folder) / file.path, file.size)
            state = state_folders.read(Path(folder))
    except (httpx.HTTPError, OSError, ValueError, Corrupt) as error:
        logger.warning("shoal: the swarm state on the server cannot be used: %s: %s", type(error).__name__, error)
        return None
    return state if state.hash == view.hash else None


def _fetch(client: httpx.Client, url: str, path: Path, size: int) -> None:
    """Download a file; an interrupted transfer continues where it stopped."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as out:
        for tried in range(_TRIES):
            try:
                with client.stream("GET", url, headers={"Range": f"bytes={out.tell()}-"}) as reply:
                    reply.raise_for_status()
                    if reply.status_code == httpx.codes.OK:
                        out.seek(0)
                        out.truncate()
                    for chunk in reply.iter_bytes():
                        out.write(chunk)
            except httpx.TransportError:
                if tried == _TRIES - 1:
                    raise
            if out.tell() >= size:
                return
    raise Corrupt(f"The server sent only a part of {path.name}.")


class LocalStates:
    """This peer's last states on disk, used for a rollback and to restart a swarm that all peers have left."""

    def __init__(self, folder: str | None):
        self._folder = Path(folder) / "states" if folder is not None else None

    def keep(self, state: State, rollbacks: int) -> None:
        """Write a state and delete the oldest ones."""
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        state_folders.write(self._folder / f"{rollbacks:06}-{state.round:012}", state)
        for old in sorted(self._folder.iterdir(), key=_written)[:-_KEEP]:
            shutil.rmtree(old, ignore_errors=True)

    def newest(self) -> tuple[State, int] | None:
        """Return the state written last and the number of rollbacks before it; None if there is none."""
        for path, state in self._states():
            return state, int(path.name.partition("-")[0])
        return None

    def of_round(self, number: int, hash: str | None) -> State | None:
        """Return the state of a round, with this hash if one is given."""
        for _, state in self._states(f"[0-9]*-{number:012}"):
            if hash in (None, state.hash):
                return state
        return None

    def _states(self, pattern: str = "[0-9]*-*") -> Iterator[tuple[Path, State]]:
        """Yield states, the one written last first. Damaged ones are logged and skipped."""
        found = self._folder.glob(pattern) if self._folder is not None else ()
        for path in sorted(found, key=_written, reverse=True):
            try:
                yield path, state_folders.read(path)
            except Corrupt as error:
                logger.warning("shoal: the state in %s cannot be used: %s", path, error)


def _written(path: Path) -> tuple[int, str]:
    """Return a sort key by write time. Names do not sort by age: a resumed swarm counts its rollbacks from zero again."""
    return path.stat().st_mtime_ns, path.name
