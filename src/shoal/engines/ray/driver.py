"""The Ray driver: the only program that uses Ray's API. The server sends it requests over loopback HTTP with a token.

It runs as a job of the cluster on the head: `python -m shoal.engines.ray.driver FOLDER`. A file lock admits one driver.

Why this is safe: each HTTP request and each placement has a thread of its own. Shared state is in `ClusterState` and
`MachineActors`, which have their own locks, and in `_cancelled`, which is changed under `_lock`. `ClusterState.begin` admits
one placement per attempt. A cancel enters `_cancelled` before it stops agents, and a placement checks `_cancelled` after it
has started them: the later of the two stops what runs. The name of an agent is registered with its machine before it is
started, so its end is reported even if the machine is lost in between. If the driver dies, nothing is lost: placement groups
and actors are detached and know what runs. `recover` of the next driver waits for the actors' reports and releases groups that
have no agents, and the server repeats its requests when it sees a new instance.
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
from shoal.engines.ray.actors import MachineActors
from shoal.engines.ray.cluster import Cluster
from shoal.engines.ray.state import ClusterState

logger = logging.getLogger(__name__)

TOKEN, ANNOUNCED = "gateway.token", "gateway.json"
SALVAGE = "salvage:"
_ROOM_S, _ASK_S, _STOP_S = 10.0, 20.0, 20.0
_RECOVER_S = 60.0
"""Seconds to wait for the first report of all actors; longer than Ray needs to give up a machine."""
_POLL_S = 0.5


class RayDriver:
    """Carries out the server's requests through the actors on the machines."""

    def __init__(self, cluster: Cluster, state: ClusterState):
        self._cluster, self._state = cluster, state
        self._actors = MachineActors(
            cluster, self._live, self._ended, state.set_machines, state.set_devices, state.set_full
        )
        self._lock = threading.Lock()
        self._cancelled: set[str] = set()

    def recover(self) -> None:
        """Collect what runs before the first request is answered, and release groups without agents."""
        self._actors.poll_new_nodes()
        self._actors.wait_for_first_reports(_RECOVER_S)
        for group in set(self._cluster.reserved()) - self._state.attempts:
            self._cluster.release(group)
        self._actors.report_machines()

    def watch_machines(self, ended: threading.Event) -> None:
        """Look for new and lost machines until `ended` is set."""
        while not ended.wait(_POLL_S):
            self._actors.poll_new_nodes()
            self._actors.report_machines()

    def start(self, asked: dict[str, Any]) -> None:
        if self._state.begin(asked["attempt_id"], [node["node"] for node in asked["nodes"]]):
            _in_thread(self._place, asked["attempt_id"], asked["nodes"], asked["env"])

    def cancel(self, asked: dict[str, Any]) -> None:
        attempt_id = asked["attempt_id"]
        with self._lock:
            if attempt_id in self._cancelled:
                return
            self._cancelled.add(attempt_id)
        _in_thread(self._end, attempt_id, asked["nodes"])

    def salvage(self, asked: dict[str, Any]) -> None:
        """Start the recovery of a node; return once it runs, raise if the machine is not connected."""
        node = asked["node"]
        actor = self._actors.on(node["machine"])
        name = f"{SALVAGE}{asked['attempt_id']}.{node['node']}"
        self._cluster.call(actor.start, name, node["work_dir"], node["salvage"], None, asked["env"], within_s=_ASK_S)

    def clean(self, asked: dict[str, Any]) -> None:
        """Remove the files of an attempt; return once that is done, raise if a machine does not answer."""
        attempt_id = asked["attempt_id"]
        actors = {node["machine"]: self._actors.on(node["machine"]) for node in asked["nodes"]}
        for machine, actor in actors.items():
            mine = [node for node in asked["nodes"] if node["machine"] == machine]
            names = [f"{prefix}{attempt_id}.{node['node']}" for node in mine for prefix in ("", SALVAGE)]
            self._cluster.call(actor.stop, names, within_s=_STOP_S)
            self._cluster.call(actor.remove, [node["work_dir"] for node in mine], within_s=_ASK_S)
        self._state.forget(attempt_id)
        with self._lock:
            self._cancelled.discard(attempt_id)

    def _place(self, attempt_id: str, nodes: list[dict[str, Any]], env: dict[str, str]) -> None:
        try:
            for node in nodes:
                self._actors.on(node["machine"])
            if not self._cluster.reserve(attempt_id, [(n["machine"], n["slots"]) for n in nodes], _ROOM_S):
                raise RuntimeError("Ray has no free slots for it")
            calls = []
            for node in nodes:
                name = f"{attempt_id}.{node['node']}"
                actor = self._actors.on(node["machine"], to_start=name)
                calls.append((actor.start, (name, node["work_dir"], node["argv"], node["launch"], env)))
            if attempt_id in self._cancelled:
                raise RuntimeError("it was cancelled")
            self._cluster.call_all(calls, _ASK_S)
        except Exception as error:
            logger.warning("attempt %s could not be started: %s", attempt_id, error)
            self._clear(attempt_id, nodes)
            self._state.fail(attempt_id, str(error).partition("\n")[0])
            return
        if attempt_id in self._cancelled:
            self._clear(attempt_id, nodes)

    def _end(self, attempt_id: str, nodes: list[dict[str, Any]]) -> None:
        self._clear(attempt_id, nodes)
        self._state.forget(attempt_id)

    def _clear(self, attempt_id: str, nodes: list[dict[str, Any]]) -> None:
        """End an attempt's agents on all machines at once and release its slots.

        Disconnected machines end them by themselves.
        """
        calls = []
        for node in nodes:
            with suppress(LookupError):
                calls.append((self._actors.on(node["machine"]).stop, ([f"{attempt_id}.{node['node']}"],)))
        try:
            self._cluster.call_all(calls, _STOP_S)
        except Exception as error:
            logger.warning("attempt %s may not have ended everywhere: %s", attempt_id, error)
        self._cluster.release(attempt_id)

    def _live(self, name: str) -> None:
        if not name.startswith(SALVAGE):
            attempt_id, _, node = name.rpartition(".")
            self._state.alive(attempt_id, int(node))

    def _ended(self, name: str) -> None:
        attempt_id, _, node = name.rpartition(".")
        if name.startswith(SALVAGE) or attempt_id not in self._state.attempts:
            return
        self._state.gone(attempt_id, int(node))
        if self._state.is_over(attempt_id):
            self._cluster.release(attempt_id)
            self._state.forget(attempt_id)


def serve(folder: Path) -> int:
    with (folder / "gateway.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("another Ray driver is running already")
            return 0
        state, ended = ClusterState(), threading.Event()
        driver = RayDriver(Cluster("auto"), state)
        driver.recover()
        _in_thread(driver.watch_machines, ended)
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(driver, state, (folder / TOKEN).read_text()))
        server.daemon_threads = True
        url = f"http://127.0.0.1:{server.server_address[1]}"
        write_private(folder / ANNOUNCED, json.dumps({"url": url, "instance": secrets.token_hex(8)}))
        server.serve_forever()
    return 0


def _handler(driver: RayDriver, state: ClusterState, token: str) -> type[BaseHTTPRequestHandler]:
    verbs = {"/start": driver.start, "/cancel": driver.cancel, "/salvage": driver.salvage, "/clean": driver.clean}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if self._allowed() and parts.path == "/state":
                query = parse_qs(parts.query)
                self._reply(200, state.wait(int(query["after"][0]), float(query["wait_s"][0])))
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
                self._reply(200, {"version": state.version})
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


def _in_thread(work: Callable[..., object], *args: Any) -> None:
    threading.Thread(target=work, args=args, daemon=True).start()


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    sys.exit(serve(Path(sys.argv[1])))
