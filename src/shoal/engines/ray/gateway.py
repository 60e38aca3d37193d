"""The one program that speaks to Ray: a job of the cluster, on the head, asked over loopback HTTP with a token.

It keeps nothing that others do not: groups and hands are detached and know what runs, so a new gateway finds all of it again.
`python -m shoal.engines.ray.gateway FOLDER`
"""

from __future__ import annotations

import fcntl
import json
import logging
import secrets
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from shoal.core.private import write_private
from shoal.engines.ray.book import Book
from shoal.engines.ray.cluster import Cluster
from shoal.engines.ray.hands import Hands

logger = logging.getLogger(__name__)

TOKEN, ANNOUNCED = "gateway.token", "gateway.json"
SALVAGE = "salvage:"
_ROOM_S, _ASK_S, _STOP_S = 10.0, 20.0, 20.0
_RECOVER_S = 60.0
"""Longer than Ray needs to give up a machine: whoever is not heard of by then is not there."""
_LOOK_S = 0.5


class Gateway:
    def __init__(self, cluster: Cluster, book: Book):
        self._cluster, self._book = cluster, book
        self._hands = Hands(cluster, self._live, self._ended, book.set_machines)
        self._lock = threading.Lock()
        self._cancelled: set[str] = set()

    def recover(self) -> None:
        """Hear what runs, before anybody is told."""
        self._hands.reach_out()
        self._hands.wait_for_first_words(_RECOVER_S)
        for group in set(self._cluster.reserved()) - self._book.attempts:
            self._cluster.release(group)
        self._hands.tell_machines()

    def look(self, ended: threading.Event) -> None:
        while not ended.wait(_LOOK_S):
            self._hands.reach_out()
            self._hands.tell_machines()

    def start(self, asked: dict[str, Any]) -> None:
        if self._book.begin(asked["attempt_id"], [node["node"] for node in asked["nodes"]]):
            _apart(self._place, asked["attempt_id"], asked["nodes"], asked["env"])

    def cancel(self, asked: dict[str, Any]) -> None:
        attempt_id = asked["attempt_id"]
        with self._lock:
            if attempt_id in self._cancelled:
                return
            self._cancelled.add(attempt_id)
        _apart(self._end, attempt_id, asked["nodes"])

    def salvage(self, asked: dict[str, Any]) -> None:
        """Returns once it runs; raises if the machine is away."""
        node = asked["node"]
        hand = self._hands.on(node["machine"])
        name = f"{SALVAGE}{asked['attempt_id']}.{node['node']}"
        self._cluster.call(hand.start, name, node["work_dir"], node["salvage"], None, asked["env"], within_s=_ASK_S)

    def clean(self, asked: dict[str, Any]) -> None:
        """Returns once it is done; raises if a machine does not answer."""
        attempt_id = asked["attempt_id"]
        hands = {node["machine"]: self._hands.on(node["machine"]) for node in asked["nodes"]}
        for machine, hand in hands.items():
            mine = [node for node in asked["nodes"] if node["machine"] == machine]
            names = [f"{prefix}{attempt_id}.{node['node']}" for node in mine for prefix in ("", SALVAGE)]
            self._cluster.call(hand.stop, names, within_s=_STOP_S)
            self._cluster.call(hand.remove, [node["work_dir"] for node in mine], within_s=_ASK_S)
        self._book.forget(attempt_id)
        with self._lock:
            self._cancelled.discard(attempt_id)

    def _place(self, attempt_id: str, nodes: list[dict[str, Any]], env: dict[str, str]) -> None:
        try:
            for node in nodes:
                self._hands.on(node["machine"])
            if not self._cluster.reserve(attempt_id, [(n["machine"], n["slots"]) for n in nodes], _ROOM_S):
                raise RuntimeError("Ray found no room for it")
            calls = []
            for node in nodes:
                name = f"{attempt_id}.{node['node']}"
                hand = self._hands.on(node["machine"], to_start=name)
                calls.append((hand.start, (name, node["work_dir"], node["argv"], node["launch"], env)))
            if attempt_id in self._cancelled:
                raise RuntimeError("it was cancelled")
            self._cluster.call_all(calls, _ASK_S)
        except Exception as error:
            logger.warning("attempt %s could not be started: %s", attempt_id, error)
            self._clear(attempt_id, nodes)
            self._book.fail(attempt_id, str(error).partition("\n")[0])
            return
        if attempt_id in self._cancelled:
            self._clear(attempt_id, nodes)

    def _end(self, attempt_id: str, nodes: list[dict[str, Any]]) -> None:
        self._clear(attempt_id, nodes)
        self._book.forget(attempt_id)

    def _clear(self, attempt_id: str, nodes: list[dict[str, Any]]) -> None:
        """End its agents, on all machines at once, and give back its room. Machines that are away end them by themselves."""
        calls = []
        for node in nodes:
            with suppress(LookupError):
                calls.append((self._hands.on(node["machine"]).stop, ([f"{attempt_id}.{node['node']}"],)))
        try:
            self._cluster.call_all(calls, _STOP_S)
        except Exception as error:
            logger.warning("attempt %s may not have ended everywhere: %s", attempt_id, error)
        self._cluster.release(attempt_id)

    def _live(self, name: str) -> None:
        if not name.startswith(SALVAGE):
            attempt_id, _, node = name.rpartition(".")
            self._book.alive(attempt_id, int(node))

    def _ended(self, name: str) -> None:
        attempt_id, _, node = name.rpartition(".")
        if name.startswith(SALVAGE) or attempt_id not in self._book.attempts:
            return
        self._book.gone(attempt_id, int(node))
        if self._book.is_over(attempt_id):
            self._cluster.release(attempt_id)
            self._book.forget(attempt_id)


def serve(folder: Path) -> int:
    with (folder / "gateway.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("there is a gateway already")
            return 0
        book, ended = Book(), threading.Event()
        gateway = Gateway(Cluster("auto"), book)
        gateway.recover()
        _apart(gateway.look, ended)
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(gateway, book, (folder / TOKEN).read_text()))
        server.daemon_threads = True
        url = f"http://127.0.0.1:{server.server_address[1]}"
        write_private(folder / ANNOUNCED, json.dumps({"url": url, "instance": secrets.token_hex(8)}))
        server.serve_forever()
    return 0


def _handler(gateway: Gateway, book: Book, token: str) -> type[BaseHTTPRequestHandler]:
    verbs = {"/start": gateway.start, "/cancel": gateway.cancel, "/salvage": gateway.salvage, "/clean": gateway.clean}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if self._allowed() and parts.path == "/state":
                query = parse_qs(parts.query)
                self._reply(200, book.wait(int(query["after"][0]), float(query["wait_s"][0])))
            else:
                self._reply(404, {})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            verb = verbs.get(self.path)
            if not self._allowed() or verb is None:
                self._reply(404, {})
                return
            try:
                verb(json.loads(body))
                self._reply(200, {"version": book.version})
            except Exception as error:
                self._reply(503, {"error": str(error).partition("\n")[0]})

        def _allowed(self) -> bool:
            given = self.headers.get("Authorization", "").removeprefix("Bearer ")
            return secrets.compare_digest(given.encode(), token.encode())

        def _reply(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(data)

        def log_message(self, *args: Any) -> None: ...

    return Handler


def _apart(work: Callable[..., object], *args: Any) -> None:
    threading.Thread(target=work, args=args, daemon=True).start()


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    sys.exit(serve(Path(sys.argv[1])))
