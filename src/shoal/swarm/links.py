"""A peer's connections to the swarm: the DHT, the averager, the progress tracker and the thread that reads records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from shoal.swarm.averaging.exchange import RoundAverager, State
from shoal.swarm.dht_records import SwarmRecords, validator
from shoal.swarm.peer import keep_interrupt, start_dht
from shoal.swarm.records import Progress, Reader, new_signing_key
from shoal.swarm.settings import Settings
from shoal.swarm.tracker import Tracker
from shoal.swarm.watch import Watch

logger = logging.getLogger(__name__)

_START_S = 60.0


def enter(settings: Settings) -> tuple[Any, SwarmRecords]:
    """Start the DHT; return it and this peer's access to the records."""
    owner = settings.owner_key or ""
    reader = Reader(settings.run_id, owner_key=owner, trust=settings.trust, members=settings.members)
    dht = start_dht(
        initial_peers=settings.initial_peers,
        listen=settings.listen,
        announce=settings.announce,
        client_mode=settings.client_mode,
        identity_path=settings.identity_path,
        record_validators=[validator(settings.run_id, owner)],
    )
    return dht, SwarmRecords(dht, reader, signing_key=settings.signing_key or new_signing_key())


def peer_of(settings: Settings, dht: Any) -> str:
    """Return the peer id given by the server, or one derived from the p2p id."""
    return settings.peer or f"peer_{str(dht.peer_id)[-12:].lower()}"


def shut_down(actions: Iterable[Callable[[], object]], processes: Iterable[Any]) -> None:
    """Run all actions, even if some of them fail, and then kill the processes that are still alive."""
    for action in actions:
        try:
            action()
        except Exception as error:
            logger.debug("shoal: leaving the swarm: %s: %s", type(error).__name__, error)
    for process in processes:
        with suppress(Exception):
            if process.is_alive():
                process.kill()
            process.join(1.0)


class Links:
    """Starts everything except the watch thread; `close` ends all of it."""

    def __init__(self, settings: Settings, size: int, *, state: Callable[[], State], describe: Callable[[], Progress]):
        self.dht, dht_records = enter(settings)
        reader = dht_records.reader
        self.p2p = str(self.dht.peer_id)
        """This peer's id in the p2p network."""
        self.peer = peer_of(settings, self.dht)
        self.averager = RoundAverager(size, self.dht, settings, reader, state)
        with keep_interrupt():
            self.averager.run_in_background(await_ready=True, timeout=_START_S)
        self.tracker = Tracker(self.dht, settings)
        self.watch = Watch(dht_records, describe, every_s=max(1.0, settings.refresh_s))
        self.tracker.admitted = lambda: reader.admitted(self.watch.records)

    def close(self) -> None:
        """Announce that this peer leaves, if that is still possible, and end all processes."""
        self.watch.close()
        actions = (
            self.watch.publish,
            lambda: self.tracker.shutdown(2.0),
            self.averager.shutdown,
            self.dht.shutdown,
        )
        shut_down(actions, (self.averager, self.dht))
