"""What ties a peer to the others: the DHT, the averager, the tracker of rounds and the watch over records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from shoal.swarm.averaging import RoundAverager, State
from shoal.swarm.book import Book, validator
from shoal.swarm.peer import keep_interrupt, start_dht
from shoal.swarm.records import Progress, Reader, new_signing_key
from shoal.swarm.settings import Settings
from shoal.swarm.tracker import Tracker
from shoal.swarm.watch import Watch

logger = logging.getLogger(__name__)

_START_S = 60.0


def enter(settings: Settings) -> tuple[Any, Book]:
    """The DHT and this peer's hand in its records."""
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
    return dht, Book(dht, reader, signing_key=settings.signing_key or new_signing_key())


def peer_of(settings: Settings, dht: Any) -> str:
    """The id the server gave, or one made of the p2p network's."""
    return settings.peer or f"peer_{str(dht.peer_id)[-12:].lower()}"


def say_good_bye(farewells: Iterable[Callable[[], object]], processes: Iterable[Any]) -> None:
    """Each of them, whatever becomes of the others; then no process is left."""
    for farewell in farewells:
        try:
            farewell()
        except Exception as error:
            logger.debug("shoal: leaving the swarm: %s: %s", type(error).__name__, error)
    for process in processes:
        with suppress(Exception):
            if process.is_alive():
                process.kill()
            process.join(1.0)


class Links:
    """All of it started but the watch; `close` ends it."""

    def __init__(self, settings: Settings, size: int, *, state: Callable[[], State], describe: Callable[[], Progress]):
        self.dht, book = enter(settings)
        reader = book.reader
        self.p2p = str(self.dht.peer_id)
        """This peer's id in the p2p network."""
        self.peer = peer_of(settings, self.dht)
        self.averager = RoundAverager(size, self.dht, settings, reader, state)
        with keep_interrupt():
            self.averager.run_in_background(await_ready=True, timeout=_START_S)
        self.tracker = Tracker(self.dht, settings)
        self.watch = Watch(book, describe, every_s=max(1.0, settings.refresh_s))
        self.tracker.admitted = lambda: reader.admitted(self.watch.records)

    def close(self) -> None:
        """Says good-bye where that is still possible, and leaves no process behind."""
        self.watch.close()
        farewells = (
            self.watch.publish,
            lambda: self.tracker.shutdown(2.0),
            self.averager.shutdown,
            self.dht.shutdown,
        )
        say_good_bye(farewells, (self.averager, self.dht))
