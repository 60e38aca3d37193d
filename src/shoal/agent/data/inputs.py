"""Brings a node's inputs to its disk: a private copy of the source; datasets and checkpoints, shared and read-only."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.agent.link import Link, backoff
from shoal.agent.sandbox.mounts import Bind
from shoal.agent.wire import Launch, Mount, PeerNodes
from shoal.core.errors import InvalidSpec, Unreachable

if TYPE_CHECKING:
    from shoal.agent.data.peer_server import PeerServer, Shelf
    from shoal.core.artifacts import Manifest
    from shoal.store.cache import CacheUse

logger = logging.getLogger(__name__)

INPUT, OUTPUT, CHECKPOINT = "/input", "/output-checkpoint", "/input-checkpoint"
_CACHE_SHARE = 0.25
"""Share of the disk for data that no job uses at the moment; the least recently used is deleted first."""
_ALIASES = {OUTPUT: "/output", CHECKPOINT: "/checkpoint"}


class Chunks:
    """Reads chunks by hash: from the store's directory on this machine, from other nodes, or from the server."""

    def __init__(
        self,
        launch: Launch,
        link: Link,
        stopped: Callable[[], bool] = lambda: False,
        peers: dict[str, PeerNodes] | None = None,
    ):
        """Set up the sources.

        `peers` names the nodes that have data, by manifest id; `stopped` ends waiting for the server.
        """
        self._store = Path(launch.store_path) if launch.store_path else None
        self._link, self._stopped = link, stopped
        self._local = threading.local()
        self._packs: Any = None
        self.shelves: dict[str, Shelf] = {}
        self._peer_server: PeerServer | None = None
        if peers:
            from shoal.agent.data.peer_server import open_shelves

            self.shelves, self._peer_server = open_shelves(peers, self.get)

    def close(self) -> None:
        """Stop serving chunks to other nodes."""
        if self._peer_server is not None:
            self._peer_server.close()

    def get(self, name: str) -> bytes:
        """Return the uncompressed bytes of a chunk, verified against its hash."""
        if self._store is not None and (found := self._from_store(self._store, name)) is not None:
            return found
        from shoal.store.hashing import verify

        data = self.request(f"/chunks/{name}")
        verify(name, data)
        return data

    def manifest(self, manifest_id: str) -> Manifest:
        """Return a manifest that this attempt may read."""
        from shoal.store.manifest import load_manifest

        return load_manifest(self.request(f"/manifests/{manifest_id}"))

    def request(self, path: str) -> bytes:
        """Send a GET request to the server, repeated until it answers.

        Can be called from any thread (each has its own link).
        """
        link: Link | None = getattr(self._local, "link", None)
        if link is None:
            link = self._local.link = self._link.another()
        for wait in backoff(0.1, 5):
            try:
                return link.get_bytes(path)
            except Unreachable:
                if self._stopped():
                    raise
                time.sleep(wait)
        raise AssertionError

    def _from_store(self, store: Path, name: str) -> bytes | None:
        """Return a chunk from the store's files, or None if it cannot be read there; then the server is asked."""
        # Uses the store's leaf modules: LocalStore imports pydantic, which takes 150 ms.
        from shoal.store.codec import decode
        from shoal.store.hashing import check_hash, verify

        try:
            try:
                stored = (store / "chunks" / check_hash(name)[:2] / name[2:]).read_bytes()
                copies = [(stored[0], stored[1:])]
            except FileNotFoundError:
                copies = self._pack_set(store).read(name)
            for codec, payload in copies:
                plain = decode(codec, payload)
                verify(name, plain)
                return plain
        except Exception as error:
            logger.warning("chunk %s from %s: %s", name[:12], store, error)
        return None

    def _pack_set(self, store: Path) -> Any:
        if self._packs is None:
            from shoal.store.files import LocalBlobs
            from shoal.store.packfiles.collection import PackSet

            self._packs = PackSet(LocalBlobs(store), store / "index.db")
        return self._packs


def write_source(manifest: dict[str, Any], chunks: Chunks, dest: Path) -> None:
    """Write a source to `dest`, replacing what is there; it appears complete, by a rename."""
    aside = dest.with_name(f"{dest.name}.new")
    clear(aside)
    aside.mkdir(parents=True)
    made = {aside}
    for file in manifest["files"]:
        path = aside / check_relative(file["path"])
        if path.parent not in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            made.add(path.parent)
        fd = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o755 if file.get("executable") else 0o644
        )
        with os.fdopen(fd, "wb") as out:
            for chunk in file["chunks"]:
                out.write(chunks.get(chunk["hash"]))
    clear(dest)
    aside.rename(dest)


def clear(folder: Path) -> None:
    """Remove a folder if it exists."""
    if folder.exists():
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


def source_key(manifest: dict[str, Any]) -> str:
    """Return a hash of a source's content."""
    import hashlib

    return hashlib.blake2b(json.dumps(manifest, sort_keys=True).encode(), digest_size=16).hexdigest()


def fetch_mount(
    mount: Mount, chunks: Chunks, cache_dir: Path, say: Callable[[str], None] = lambda line: None
) -> CacheUse:
    """Bring a mount's content to this machine's shared cache; it is not evicted while the returned use is held."""
    import shutil

    from shoal.store.cache import NodeCache

    cache_dir.mkdir(parents=True, exist_ok=True)
    cache = NodeCache(cache_dir / "data", max_bytes=int(shutil.disk_usage(cache_dir).total * _CACHE_SHARE))
    kind = "checkpoint" if mount.path == CHECKPOINT else "dataset"
    manifest = chunks.manifest(mount.manifest_id)
    shelf = chunks.shelves.get(mount.manifest_id)
    if shelf is None:
        return cache.use(kind, manifest, chunks.get, verify=False)
    shelf.lay_out(manifest, cache.root / kind / mount.manifest_id)
    use = cache.use(kind, manifest, shelf.cache.get, verify=False)
    shelf.cache.free_memory()
    if shelf.cache.from_others:
        here, there = (f"{n / 1e6:.1f} MB" for n in (shelf.cache.from_others, shelf.cache.from_server))
        say(f"[shoal] {mount.name}: {here} from other nodes, {there} from the server")
    return use


def lay_out(work_dir: Path, job_id: str, mounts: list[tuple[Mount, Path]], *, mounted: bool) -> list[Bind]:
    """Create a job's folders and return the binds of the runtime contract.

    `mounted`: the sandbox mounts the binds. Otherwise paths are rewritten, and symbolic links replace the mounts.
    """
    output = work_dir / "output-checkpoint"
    output.mkdir(exist_ok=True)
    datasets = {m.path.removeprefix(f"{INPUT}/"): host for m, host in mounts if m.path.startswith(f"{INPUT}/")}
    folder = _input_folder(work_dir / "input", datasets, mounted=mounted)
    binds = [Bind(INPUT, str(folder)), Bind(OUTPUT, str(output), read_only=False)]
    for mount, host in mounts:
        if mounted or not mount.path.startswith(f"{INPUT}/"):
            binds.append(Bind(mount.path, str(host)))
    if datasets:
        binds.append(
            Bind(
                f"/netmind_train/datasets/{job_id}",
                str(next(iter(datasets.values())) if len(datasets) == 1 else folder),
            )
        )
    return binds + [Bind(_ALIASES[b.inside], b.host, b.read_only) for b in binds if b.inside in _ALIASES]


def data_path(mounts: list[Mount]) -> str | None:
    """Return the path for --data and DATA_LOCATION: the dataset, or the folder of all datasets if there are several."""
    found = [m.path for m in mounts if m.path.startswith(f"{INPUT}/")]
    return None if not found else found[0] if len(found) == 1 else INPUT


def checkpoint_path(mounts: list[Mount]) -> str | None:
    return CHECKPOINT if any(m.path == CHECKPOINT for m in mounts) else None


def _input_folder(folder: Path, datasets: dict[str, Path], *, mounted: bool) -> Path:
    """Create the folder for /input with an entry per dataset; a single dataset's files are also linked directly into it."""
    clear(folder)
    folder.mkdir()
    for name, host in datasets.items():
        if mounted:
            (folder / check_relative(name)).mkdir()
        else:
            (folder / check_relative(name)).symlink_to(host)
    if len(datasets) == 1:
        ((name, host),) = datasets.items()
        for entry in host.iterdir():
            if entry.name != name:
                (folder / entry.name).symlink_to(f"{name}/{entry.name}")
    return folder


def check_relative(path: str) -> str:
    """Return a safe relative path, or raise InvalidSpec: core.artifacts.check_path without pydantic."""
    if not path or "\\" in path or "\0" in path or any(p in ("", ".", "..") for p in path.split("/")):
        raise InvalidSpec(f"{path!r} is not a safe relative path.")
    return path
