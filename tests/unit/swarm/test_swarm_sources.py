"""States from the server, through a line that breaks, and from this machine's disk."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from shoal.testing.extras import needs  # noqa: E402

pytestmark = needs("hivemind")


@pytest.fixture(autouse=True, scope="module")
def _imports() -> None:
    global states, Settings, LocalStates, from_server, State, state_hash
    from shoal.swarm import states
    from shoal.swarm.averaging.wire import State, state_hash
    from shoal.swarm.settings import Settings
    from shoal.swarm.sources import LocalStates, from_server


def state(round: int = 7, size: int = 20_000) -> State:
    names = ["model/weight", "outer/momentum/weight"]
    tensors = [torch.full((size,), float(round)), torch.zeros(size)]
    return State(round, round * 100, 1.5, names, tensors, state_hash(names, tensors))


class Server(ThreadingHTTPServer):
    """Gives a snapshot at most 30,000 bytes at a time, to those who have the token."""

    def __init__(self, folder: Path, kept: State):
        self.folder, self.kept, self.asked = folder, kept, 0
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        if self.headers.get("Authorization") != "Bearer good":
            self.send_error(403)
            return
        if self.path == "/snapshot":
            files = [{"path": p.name, "size": p.stat().st_size} for p in server.folder.iterdir()]
            body, status = (
                json.dumps({"id": "ckpt_1", "round": 7, "hash": server.kept.hash, "files": files}).encode(),
                200,
            )
        else:
            server.asked += 1
            whole = (server.folder / self.path.removeprefix("/snapshot/ckpt_1/")).read_bytes()
            start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
            body, status = whole[start : start + 30_000], 206
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    kept = state()
    with Server(states.write(tmp_path / "kept", kept), kept) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def settings(server: Server, token: str = "good") -> Settings:
    url = f"http://127.0.0.1:{server.server_port}/snapshot"
    return Settings.of({"run_id": "test", "target_batch_size": 1, "snapshot_url": url, "token": token})


def test_a_state_comes_from_the_server_piece_by_piece(server: Server):
    found = from_server(settings(server))
    assert found is not None and (found.round, found.samples, found.hash) == (7, 700, server.kept.hash)
    assert server.asked > 3


def test_another_state_than_the_one_wanted_is_not_fetched(server: Server):
    assert from_server(settings(server), wanted="another") is None
    assert server.asked == 0


def test_a_damaged_state_is_not_taken(server: Server):
    file = server.folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4] + b"\0\0\0\1")
    assert from_server(settings(server)) is None


def test_a_server_that_refuses_or_is_gone_is_no_reason_to_stop(server: Server):
    assert from_server(settings(server, token="bad")) is None
    gone = Settings.of({"run_id": "test", "target_batch_size": 1, "snapshot_url": "http://127.0.0.1:1/snapshot"})
    assert from_server(gone) is None
    assert from_server(Settings.of({"run_id": "test", "target_batch_size": 1})) is None


def test_the_shelf_keeps_the_last_states_and_finds_them_again(tmp_path: Path):
    local = LocalStates(str(tmp_path))
    assert local.newest() is None
    for number in range(10):
        local.keep(state(number, size=10), 0)
    newest = local.newest()
    assert newest is not None and newest[0].round == 9 and newest[1] == 0
    assert local.of_round(2, None) is None
    kept = local.of_round(8, state(8, size=10).hash)
    assert kept is not None and kept.round == 8
    assert local.of_round(8, "another") is None


def test_after_a_rollback_the_earlier_round_is_the_newest(tmp_path: Path):
    local = LocalStates(str(tmp_path))
    local.keep(state(9, size=10), 0)
    local.keep(state(5, size=10), 1)
    newest = local.newest()
    assert newest is not None and (newest[0].round, newest[1]) == (5, 1)


def test_a_broken_state_on_disk_is_passed_over(tmp_path: Path):
    local = LocalStates(str(tmp_path))
    local.keep(state(1, size=10), 0)
    local.keep(state(2, size=10), 0)
    for file in (tmp_path / "states" / f"{0:06}-{2:012}").iterdir():
        file.write_bytes(b"")
    newest = local.newest()
    assert newest is not None and newest[0].round == 1
    assert local.of_round(2, None) is None, "a rollback then asks the server"


def test_a_swarm_that_is_resumed_counts_its_rollbacks_anew_and_its_states_stay(tmp_path: Path):
    local = LocalStates(str(tmp_path))
    for number in range(6):
        local.keep(state(number, size=10), 1)
    for path in (tmp_path / "states").iterdir():
        os.utime(path, (1.0, 1.0))
    local.keep(state(3, size=10), 0)
    newest = local.newest()
    assert newest is not None and (newest[0].round, newest[1]) == (3, 0)


def test_without_a_folder_nothing_is_kept():
    local = LocalStates(None)
    local.keep(state(), 0)
    assert local.newest() is None
