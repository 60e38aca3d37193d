"""Nodes get data from each other: together they cost the server one copy, and nobody gets what is not theirs."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import pytest

from shoal.agent.data import peer_cache
from shoal.agent.data.inputs import Chunks, fetch_mount
from shoal.agent.data.peer_cache import SIZE, PeerCache, chosen, exactly, proof, split
from shoal.agent.data.peer_server import PeerServer, Shelf
from shoal.agent.link import Link
from shoal.agent.wire import Launch, Mount, PeerNodes
from shoal.core.ports import free_port
from shoal.store.hashing import chunk_hash
from shoal.store.manifest import chunk_hashes, dump_manifest, manifest_id
from shoal.store.pack import PackedTree, pack_tree
from shoal.testing.patience import patient

KEY = "k" * 43
FILES = {f"part-{n}": bytes([n]) * (300_000 + n) for n in range(20)} | {"large": bytes(range(256)) * 12_000}


class CountingServer(Link):
    """Has the chunks of a tree, and knows how often each was asked for."""

    def __init__(self, packed: PackedTree):
        super().__init__("http://127.0.0.1:9", "t")
        self.asked: Counter[str] = Counter()
        self._manifest = dump_manifest(packed.manifest)
        self._chunks: dict[str, bytes] = {}
        for file in packed.manifest.files:
            offset = 0
            for chunk in file.chunks:
                self._chunks[chunk.hash] = FILES[file.path][offset : offset + chunk.size]
                offset += chunk.size

    def another(self) -> CountingServer:
        return self

    def get_bytes(self, path: str) -> bytes:
        if path.startswith("/manifests/"):
            return self._manifest
        name = path.removeprefix("/chunks/")
        self.asked[name] += 1
        return self._chunks[name]


@pytest.fixture
def packed(tmp_path: Path) -> PackedTree:
    tree = tmp_path / "tree"
    tree.mkdir()
    for name, data in FILES.items():
        (tree / name).write_bytes(data)
    return pack_tree(tree, ignore=False)


def fetch_all(packed: PackedTree, tmp_path: Path, told: list[PeerNodes], server: CountingServer) -> list[list[str]]:
    """One node for each, all at once; gives what each of them said."""
    name = manifest_id(packed.manifest)
    mount = Mount({"path": "/input/d", "manifest_id": name, "name": "d"})
    nodes = [Chunks(Launch({}), server, peers={name: about}) for about in told]
    said: list[list[str]] = [[] for _ in nodes]

    def fetch(n: int) -> None:
        with fetch_mount(mount, nodes[n], tmp_path / str(n), said[n].append) as use:
            assert {p.name: p.read_bytes() for p in use.path.iterdir()} == FILES

    try:
        with ThreadPoolExecutor(len(nodes)) as pool:
            list(pool.map(fetch, range(len(nodes))))
    finally:
        for node in nodes:
            node.close()
    return said


def gang_of(count: int, **others: list[str]) -> list[PeerNodes]:
    gang = [f"127.0.0.1:{free_port()}" for _ in range(count)]
    return [PeerNodes({"key": KEY, "own": own, "gang": gang, **others}) for own in gang]


@pytest.mark.parametrize("moment", ["after the folders are listed", "after the first of them is opened in vain"])
def test_a_chunk_is_found_on_disk_while_its_folder_gets_its_final_name(
    packed: PackedTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    server = CountingServer(packed)
    [node] = gang_of(1)
    shelf = Shelf(PeerCache(manifest_id(packed.manifest), node, server.get_bytes))
    final, temporary = tmp_path / "final", tmp_path / ".final.1.tmp"
    (tmp_path / "tree").rename(temporary)
    shelf.lay_out(packed.manifest, final)
    listed, opened = Path.glob, Path.open

    def list_then_rename(path: Path, pattern: str) -> list[Path]:
        found = list(listed(path, pattern))
        if moment.startswith("after the folders"):
            temporary.rename(final)
        return found

    def open_then_rename(path: Path, mode: str) -> IO[bytes]:
        try:
            return opened(path, mode)
        except FileNotFoundError:
            if temporary.exists():
                temporary.rename(final)
            raise

    monkeypatch.setattr(Path, "glob", list_then_rename)
    monkeypatch.setattr(Path, "open", open_then_rename)
    name = next(iter(chunk_hashes(packed.manifest)))
    assert chunk_hash(shelf.find(name) or b"") == name
    assert not server.asked


def test_nodes_that_start_together_cost_the_server_one_copy(
    packed: PackedTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_cache, "_ANSWER_S", patient(30))
    monkeypatch.setattr(peer_cache, "_COMES_UP_S", patient(30))
    server = CountingServer(packed)
    said = fetch_all(packed, tmp_path, gang_of(3), server)
    assert set(server.asked) == set(chunk_hashes(packed.manifest))
    assert set(server.asked.values()) == {1}
    assert all("from other nodes" in line for lines in said for line in lines) and all(said)


def test_a_node_that_has_all_of_it_spares_the_server(packed: PackedTree, tmp_path: Path) -> None:
    server = CountingServer(packed)
    [first] = gang_of(1)
    shelf = Shelf(PeerCache(manifest_id(packed.manifest), first, server.get_bytes))
    shelf.lay_out(packed.manifest, tmp_path / "tree")
    giver = PeerServer(first.own, {manifest_id(packed.manifest): shelf}.get)
    giver.start()
    fetch_all(packed, tmp_path, gang_of(1, holders=[first.own]), server)
    giver.close()
    assert not server.asked


def test_one_that_is_gone_costs_a_moment_and_no_data(
    packed: PackedTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_cache, "_COMES_UP_S", 0.0)
    server = CountingServer(packed)
    fetch_all(packed, tmp_path, gang_of(2)[:1], server)
    assert set(server.asked.values()) == {1}


def test_one_that_is_silent_is_asked_no_more(
    packed: PackedTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_cache, "_ANSWER_S", 0.2)
    server = CountingServer(packed)
    first, second = gang_of(2)
    with socket.create_server(split(second.own)):
        fetch_all(packed, tmp_path, [first], server)
    assert set(server.asked.values()) == {1}


def test_bytes_that_are_not_the_chunk_are_not_taken(packed: PackedTree, tmp_path: Path) -> None:
    server = CountingServer(packed)
    first, second = gang_of(2)
    with socket.create_server(split(second.own)) as listener:
        liar = threading.Thread(target=answer_wrongly, args=(listener,), daemon=True)
        liar.start()
        fetch_all(packed, tmp_path, [first], server)
        listener.shutdown(socket.SHUT_RDWR)
        liar.join()
    assert set(server.asked) == set(chunk_hashes(packed.manifest))


def answer_wrongly(listener: socket.socket) -> None:
    while True:
        try:
            line, _ = listener.accept()
        except OSError:
            return
        with line:
            line.recv(1024)
            line.sendall((7).to_bytes(SIZE, "big") + b"poison!")


@pytest.mark.parametrize("wrong", ["key", "manifest", "chunk", "place", "noise"])
def test_who_cannot_prove_to_have_the_manifest_gets_nothing(packed: PackedTree, tmp_path: Path, wrong: str) -> None:
    known = manifest_id(packed.manifest)
    name = packed.manifest.files[0].chunks[0].hash
    [about] = gang_of(1)
    shelf = Shelf(PeerCache(known, about, CountingServer(packed).get_bytes))
    shelf.lay_out(packed.manifest, tmp_path / "tree")
    giver = PeerServer(about.own, {known: shelf}.get)
    giver.start()
    asked = {
        "key": f"{known} {name} {proof('other', about.own, name)}\n",
        "manifest": f"{'0' * 64} {name} {proof(KEY, about.own, name)}\n",
        "chunk": f"{known} {name} {proof(KEY, about.own, chunk_hash(b'x'))}\n",
        "place": f"{known} {name} {proof(KEY, '10.0.0.9:1', name)}\n",
        "noise": "x" * 195,
    }[wrong]
    with socket.create_connection(split(about.own), 5) as line:
        line.sendall(asked.encode())
        assert line.recv(1) == b"", "it hangs up"
    with socket.create_connection(split(about.own), 5) as line:
        line.sendall(f"{known} {name} {proof(KEY, about.own, name)}\n".encode())
        size = int.from_bytes(exactly(line, SIZE), "big")
        assert chunk_hash(exactly(line, size)) == name, "and goes on answering those who can"
        line.sendall(f"{known} {'0' * 64} {proof(KEY, about.own, '0' * 64)}\n".encode())
        assert exactly(line, SIZE) == bytes(SIZE), "a chunk of another manifest is not here"
    giver.close()


def test_all_choose_the_same_node_for_a_chunk_and_only_its_own_move_when_it_is_gone() -> None:
    [about, *_] = gang_of(4)
    names = [chunk_hash(str(n).encode()) for n in range(400)]
    before = {name: chosen(name, about, set()) for name in names}
    assert min(Counter(before.values()).values()) > 60
    gone = about.gang[2]
    after = {name: chosen(name, about, {gone}) for name in names}
    assert all(after[name] == before[name] for name in names if before[name] != gone)
    assert chosen(names[0], about, set(about.gang)) is None
