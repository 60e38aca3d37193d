"""Where the state of a swarm comes from: peers that hold it, the server's last checkpoint, this machine's own disk."""

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
from shoal.swarm import snapshots
from shoal.swarm.agreement import Agreed
from shoal.swarm.averaging import prefix_of
from shoal.swarm.records import Progress
from shoal.swarm.settings import Settings
from shoal.swarm.wire import State, download

logger = logging.getLogger(__name__)

_KEEP = 6
_TRIES = 20
_SERVER_S = 30.0


def from_peers(
    dht: Any, run_id: str, goal: Agreed, records: Iterable[Progress], silent: set[str], *, timeout_s: float = 600.0
) -> Iterator[State]:
    """The states of all who serve one, those who said they hold the goal first. They may have gone on meanwhile, or lie:
    whether a state is the swarm's its hash must tell. Who gives none, as it may be dead, is added to `silent`."""
    likely = {record.p2p: None for record in goal.holders if record.serves_state}
    others = {record.p2p: None for record in records if record.serves_state and record.state != "leaving"}
    for holder in [p2p for p2p in likely | others if p2p not in silent]:
        give = functools.partial(_give, holder=holder, prefix=prefix_of(run_id))
        try:
            found: State | str = dht.run_coroutine(give, return_future=True).result(timeout=timeout_s)
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        if isinstance(found, State):
            yield found
        else:
            silent.add(holder)
            logger.info("shoal: %s did not give its state: %s", holder, found)


async def _give(_dht: Any, node: Any, *, holder: str, prefix: str) -> State | str:
    """The state, or why there is none. Runs in the DHT's process, where the p2p connection is."""
    try:
        return await download(node.protocol.p2p, PeerID.from_base58(holder), prefix)
    except Exception as error:  # of p2p, of timeouts, of what was sent: the next one is asked
        return f"{type(error).__name__}: {error}"


def ask_peers(dht: Any, run_id: str, goal: Agreed) -> Any:
    """A future of the state the swarm has agreed on, from the first holder that gives it whole; of None if nobody does."""
    holders = [record.p2p for record in goal.holders if record.serves_state]
    ask = functools.partial(_ask, holders=holders, prefix=prefix_of(run_id), wanted=goal.hash)
    return dht.run_coroutine(ask, return_future=True)


async def _ask(_dht: Any, node: Any, *, holders: Sequence[str], prefix: str, wanted: str) -> State | None:
    for holder in holders:
        found = await _give(_dht, node, holder=holder, prefix=prefix)
        if isinstance(found, State) and found.hash == wanted:
            return found
        why = "it has gone on to another" if isinstance(found, State) else found
        logger.info("shoal: %s did not give the state wanted: %s", holder, why)
    return None


def from_server(settings: Settings, wanted: str | None = None) -> State | None:
    """The newest state the server has, or the one with this hash; None if it has none or cannot be reached."""
    if settings.snapshot_url is None:
        return None
    headers = {"Authorization": f"Bearer {settings.token}"} if settings.token else {}
    try:
        with httpx.Client(headers=headers, timeout=_SERVER_S) as client, tempfile.TemporaryDirectory() as folder:
            reply = client.get(settings.snapshot_url)
            reply.raise_for_status()
            view = SwarmStateView.model_validate_json(reply.content)
            if wanted not in (None, view.hash):
                return None
            for file in view.files:
                _fetch(client, f"{settings.snapshot_url}/{view.id}/{file.path}", Path(folder) / file.path, file.size)
            state = snapshots.read(Path(folder))
    except (httpx.HTTPError, OSError, ValueError, Corrupt) as error:
        logger.warning("shoal: the server's state of the swarm cannot be used: %s: %s", type(error).__name__, error)
        return None
    return state if state.hash == view.hash else None


def _fetch(client: httpx.Client, url: str, path: Path, size: int) -> None:
    """Goes on where it was cut off."""
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
    raise Corrupt(f"The server gave less of {path.name} than it has.")


class Shelf:
    """The last states of this peer on disk: to go back to at a rollback, or to begin with when everybody was gone."""

    def __init__(self, folder: str | None):
        self._folder = Path(folder) / "states" if folder is not None else None

    def keep(self, state: State, rollbacks: int) -> None:
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        snapshots.write(self._folder / f"{rollbacks:06}-{state.round:012}", state)
        for old in sorted(self._folder.iterdir(), key=_written)[:-_KEEP]:
            shutil.rmtree(old, ignore_errors=True)

    def newest(self) -> tuple[State, int] | None:
        """With the number of rollbacks that led to it."""
        for path, state in self._states():
            return state, int(path.name.partition("-")[0])
        return None

    def of_round(self, number: int, hash: str | None) -> State | None:
        for _, state in self._states(f"[0-9]*-{number:012}"):
            if hash in (None, state.hash):
                return state
        return None

    def _states(self, pattern: str = "[0-9]*-*") -> Iterator[tuple[Path, State]]:
        """The last written first; a broken one is passed over."""
        found = self._folder.glob(pattern) if self._folder is not None else ()
        for path in sorted(found, key=_written, reverse=True):
            try:
                yield path, snapshots.read(path)
            except Corrupt as error:
                logger.warning("shoal: the state in %s cannot be used: %s", path, error)


def _written(path: Path) -> tuple[int, str]:
    """Not by name: a swarm that is resumed counts its rollbacks anew."""
    return path.stat().st_mtime_ns, path.name
