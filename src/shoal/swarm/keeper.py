"""The server's own peer of a swarm: `python -m shoal.swarm.keeper FILE`. First address, monitor, keeper of checkpoints.

It trains nothing and averages nothing. It tells of the swarm in JSON lines on stdout, is told in JSON lines on stdin, and
outlives whoever started it: the end of stdin means nothing, SIGTERM ends it.
"""

from __future__ import annotations

import json
import logging
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shoal.core.swarm import KeeperOrder
from shoal.swarm.archive import Archive
from shoal.swarm.book import Book, validator
from shoal.swarm.helm import Helm
from shoal.swarm.monitor import Monitor
from shoal.swarm.peer import addresses, start_dht
from shoal.swarm.records import Reader

logger = logging.getLogger(__name__)

Say = Callable[[dict[str, Any]], None]
LOOK_S = 1.0
"""Between two looks at the peers' records."""
ORDER_S = 60.0
"""Between two publications of the same order, which lives ten times as long."""
_KNOWN_S = 15.0


class Keeper:
    def __init__(self, order: KeeperOrder, dht: Any, say: Say):
        ticket = order.ticket
        self._dht, self._say = dht, say
        reader = Reader(ticket.run_id, owner_key=ticket.owner_key, trust=ticket.trust, members=ticket.members)
        self._book = Book(dht, reader, signing_key=order.owner_signing_key)
        self._helm = Helm(members=ticket.members, banned=order.banned, clock=time.time)
        self._monitor = Monitor()
        self._archive = Archive(order, dht)
        self._ordered_at = float("-inf")
        self._last: dict[str, Any] = {}

    def do(self, command: Any) -> None:
        """What cannot be understood is logged: whoever wrote it may be newer than we are."""
        match command:
            case {"do": "checkpoint"}:
                self._archive.want()
            case {"do": "kick", "peer": str(peer)}:
                self._tell(self._helm.kick(peer, str(command.get("reason", "the owner sent it away"))[:300]))
            case {"do": "members", "members": dict(members)}:
                self._helm.set_members(members, command.get("banned", []))
            case {"do": "stop"}:
                self._archive.want()
                self._helm.stop()
            case _:
                logger.warning("not understood: %.200r", command)

    def look(self) -> None:
        """One pass over everything; short, except for the network."""
        records = self._book.progress()
        self._helm.see(records)
        shown = self._monitor.progress(records)
        if shown != self._last:
            self._last = shown
            self._say(shown)
        for settled in self._monitor.settle(records, time.monotonic()):
            self._say(settled.event)
            self._tell(self._helm.judge(settled, records))
        for event in self._archive.advance(records):
            self._helm.saved(event["round"], event["hash"])
            self._say(event)
        self._order()

    def _order(self) -> None:
        """Published when it has changed, and again before it is forgotten."""
        if not self._helm.is_new and time.monotonic() - self._ordered_at < ORDER_S:
            return
        order = self._helm.take_order()
        self._book.reader.order = order
        if not self._book.publish(order, lasts_s=10 * ORDER_S):
            logger.debug("nobody but us has the order yet")
        self._ordered_at = time.monotonic()

    def _tell(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            self._say(event)


def main() -> int:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    try:
        order = KeeperOrder.model_validate_json(Path(sys.argv[1]).read_bytes())
    except (IndexError, OSError, ValidationError) as error:
        # Not the error itself: it would show what is in the file, and that holds keys.
        print(
            f"no order to keep a swarm by: {type(error).__name__}; usage: python -m shoal.swarm.keeper FILE",
            file=sys.stderr,
        )
        return 2
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    folder = Path(order.folder)
    folder.mkdir(parents=True, exist_ok=True)
    dht = _join(order, folder / ".peers.json")
    try:
        say({"event": "ready", "addresses": addresses(dht)})
        _keep(Keeper(order, dht, say), dht, folder / ".peers.json", over)
    finally:
        dht.shutdown()
        if dht.is_alive():
            dht.kill()
    return 0


def say(event: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(event, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def _keep(keeper: Keeper, dht: Any, known: Path, over: threading.Event) -> None:
    commands: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(commands,), daemon=True).start()
    noted_at = float("-inf")
    while not over.is_set():
        try:
            while True:
                keeper.do(commands.get_nowait())
        except queue.Empty:
            pass
        try:
            keeper.look()
            if time.monotonic() - noted_at > _KNOWN_S:
                known.write_text(json.dumps(neighbours(dht)))
                noted_at = time.monotonic()
        except Exception:
            # A record nobody thought of, or a network that is down for now: the next look may find it well.
            logger.exception("a look at the swarm failed")
            if not dht.is_alive():
                raise
        over.wait(LOOK_S)


def _listen(commands: queue.SimpleQueue[Any]) -> None:
    for line in sys.stdin:
        try:
            commands.put(json.loads(line))
        except ValueError:
            logger.warning("not understood: %.200r", line)


def _join(order: KeeperOrder, known: Path) -> Any:
    """After a restart, back to the peers we knew; they may all be gone, and then we are the first again."""
    options: dict[str, Any] = {
        "listen": order.listen,
        "announce": order.announce,
        "identity_path": order.identity_path,
        "record_validators": [validator(order.ticket.run_id, order.ticket.owner_key)],
    }
    peers = list(order.ticket.initial_peers)
    try:
        peers += json.loads(known.read_text())
    except (OSError, ValueError):
        pass
    if peers:
        try:
            return start_dht(initial_peers=peers, timeout_s=5.0, **options)
        except Exception as error:
            logger.warning("none of the peers we knew answers: %s", error)
    return start_dht(**options)


def neighbours(dht: Any) -> list[str]:
    """Addresses of the peers we are connected with."""
    found: list[str] = dht.run_coroutine(_neighbours)
    return found


async def _neighbours(_dht: Any, node: Any) -> list[str]:
    infos = await node.protocol.p2p.list_peers()
    return [f"{address}/p2p/{info.peer_id}" for info in infos for address in info.addrs]


if __name__ == "__main__":
    sys.exit(main())
