"""Swarm coordinator, the server's own peer: `python -m shoal.swarm.coordinator FILE`.

It is the address that new peers contact first, monitors the swarm and saves its checkpoints. It neither trains nor averages.
It writes events as JSON lines to stdout and reads commands as JSON lines from stdin. It keeps running when the process that
started it ends or closes stdin; SIGTERM stops it.

Why this is safe: the main thread owns `Coordinator` and all it contains. The thread that reads stdin only puts commands into a
queue, the handler of SIGTERM only sets an event, and the DHT is a process of its own that is called through its methods. Each
event is one flushed line, written after what it reports: a checkpoint has its final name before its event. A crash in between
loses the event, not the files, and the next coordinator starts from the newest checkpoint that the server knows. A torn list
of known peers is ignored.
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

from shoal.core.swarm import CoordinatorSettings
from shoal.swarm.archive import Archive
from shoal.swarm.control import SwarmControl
from shoal.swarm.dht_records import SwarmRecords, validator
from shoal.swarm.monitor import Monitor
from shoal.swarm.peer import addresses, start_dht
from shoal.swarm.records import Reader

logger = logging.getLogger(__name__)

Say = Callable[[dict[str, Any]], None]
LOOK_S = 1.0
"""Seconds between two reads of the peers' records."""
COMMANDS_S = 60.0
"""Seconds between two publications of an unchanged owner's record, which expires after ten times as long."""
_KNOWN_S = 15.0
"""Seconds between two writes of the list of known peers."""


class Coordinator:
    """Monitor, archive and owner's commands of one swarm. Used by one thread."""

    def __init__(self, settings: CoordinatorSettings, dht: Any, say: Say):
        ticket = settings.ticket
        self._dht, self._say = dht, say
        reader = Reader(ticket.run_id, owner_key=ticket.owner_key, trust=ticket.trust, members=ticket.members)
        self._dht_records = SwarmRecords(dht, reader, signing_key=settings.owner_signing_key)
        self._control = SwarmControl(members=ticket.members, banned=settings.banned, clock=time.time)
        self._monitor = Monitor()
        self._archive = Archive(settings, dht)
        self._published_at = float("-inf")
        self._last: dict[str, Any] = {}

    def do(self, command: Any) -> None:
        """Execute a command from stdin. Unknown commands are logged, because the server may be newer than this process."""
        match command:
            case {"do": "checkpoint"}:
                self._archive.want()
            case {"do": "kick", "peer": str(peer)}:
                self._emit(self._control.kick(peer, str(command.get("reason", "removed by the owner"))[:300]))
            case {"do": "members", "members": dict(members)}:
                self._control.set_members(members, command.get("banned", []))
            case {"do": "stop"}:
                self._archive.want()
                self._control.stop()
            case _:
                logger.warning("unknown command: %.200r", command)

    def poll(self) -> None:
        """Read the records once and act on them: events, checkpoints, owner's commands. Only the network can take long."""
        records = self._dht_records.progress()
        self._control.see(records)
        shown = self._monitor.progress(records)
        if shown != self._last:
            self._last = shown
            self._say(shown)
        for settled in self._monitor.finished_rounds(records, time.monotonic()):
            events = self._control.judge(settled, records)
            self._say({**settled.event, "credit": self._control.credit(settled)})
            self._emit(events)
        for event in self._archive.advance(records):
            self._control.saved(event["round"], event["hash"])
            self._say(event)
        self._publish_commands()

    def _publish_commands(self) -> None:
        """Publish the owner's record if it has changed, and again before it expires."""
        if not self._control.is_new and time.monotonic() - self._published_at < COMMANDS_S:
            return
        commands = self._control.current_commands()
        self._dht_records.reader.commands = commands
        if not self._dht_records.publish(commands, lasts_s=10 * COMMANDS_S):
            logger.debug("no other node has stored the owner's record yet")
        self._published_at = time.monotonic()

    def _emit(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            self._say(event)


def main() -> int:
    """Run the coordinator until SIGTERM; return the exit code."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    try:
        settings = CoordinatorSettings.model_validate_json(Path(sys.argv[1]).read_bytes())
    except (IndexError, OSError, ValidationError) as error:
        # The error itself is not shown: it would quote the file, which contains keys.
        print(
            f"cannot read the swarm's file ({type(error).__name__}); usage: python -m shoal.swarm.coordinator FILE",
            file=sys.stderr,
        )
        return 2
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    folder = Path(settings.folder)
    folder.mkdir(parents=True, exist_ok=True)
    dht = _join(settings, folder / ".peers.json")
    try:
        write_event({"event": "ready", "addresses": addresses(dht)})
        _run(Coordinator(settings, dht, write_event), dht, folder / ".peers.json", over)
    finally:
        dht.shutdown()
        if dht.is_alive():
            dht.kill()
    return 0


def write_event(event: dict[str, Any]) -> None:
    """Write an event as one JSON line to stdout."""
    sys.stdout.write(json.dumps(event, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def _run(coordinator: Coordinator, dht: Any, known: Path, over: threading.Event) -> None:
    """Poll until `over` is set. The thread that reads stdin only fills the queue; all work is done in this one."""
    commands: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read_commands, args=(commands,), daemon=True).start()
    noted_at = float("-inf")
    while not over.is_set():
        try:
            while True:
                coordinator.do(commands.get_nowait())
        except queue.Empty:
            pass
        try:
            coordinator.poll()
            if time.monotonic() - noted_at > _KNOWN_S:
                known.write_text(json.dumps(known_addresses(dht)))
                noted_at = time.monotonic()
        except Exception:
            # An unexpected record or a network that is down for now: the next poll may succeed.
            logger.exception("polling the swarm failed")
            if not dht.is_alive():
                raise
        over.wait(LOOK_S)


def _read_commands(commands: queue.SimpleQueue[Any]) -> None:
    for line in sys.stdin:
        try:
            commands.put(json.loads(line))
        except ValueError:
            logger.warning("not a JSON line: %.200r", line)


def _join(settings: CoordinatorSettings, known: Path) -> Any:
    """Start the DHT, connected to the peers known before a restart; if none of them answers, as the first peer."""
    options: dict[str, Any] = {
        "listen": settings.listen,
        "announce": settings.announce,
        "identity_path": settings.identity_path,
        "record_validators": [validator(settings.ticket.run_id, settings.ticket.owner_key)],
    }
    peers = list(settings.ticket.initial_peers)
    try:
        peers += json.loads(known.read_text())
    except (OSError, ValueError):
        pass
    if peers:
        try:
            return start_dht(initial_peers=peers, timeout_s=5.0, **options)
        except Exception as error:
            logger.warning("none of the known peers answers: %s", error)
    return start_dht(**options)


def known_addresses(dht: Any) -> list[str]:
    """Return the addresses of the peers this process is connected to."""
    found: list[str] = dht.run_coroutine(_connected_peers)
    return found


async def _connected_peers(_dht: Any, node: Any) -> list[str]:
    infos = await node.protocol.p2p.list_peers()
    return [f"{address}/p2p/{info.peer_id}" for info in infos for address in info.addrs]


if __name__ == "__main__":
    sys.exit(main())
