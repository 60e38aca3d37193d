"""Verification of a whole store: damaged chunks, the manifests they affect, and the space used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from shoal.core.errors import Corrupt, NotFound
from shoal.store.blobs import Blob
from shoal.store.blobstore import BlobStore, chunk_key, key_name
from shoal.store.codec import decode
from shoal.store.hashing import verify
from shoal.store.manifest import chunk_hashes
from shoal.store.pack import THREADS, Progress
from shoal.store.packfiles.collection import PREFIX as PACKS
from shoal.store.packfiles.collection import blob_name, key
from shoal.store.packfiles.packfile import read_head


@dataclass(slots=True)
class CheckReport:
    """Result of `check`."""

    chunks: int = 0
    size: int = 0
    """Stored bytes read."""
    damaged: set[str] = field(default_factory=set)
    """Hashes of chunks whose bytes do not match."""
    missing: set[str] = field(default_factory=set)
    """Hashes that a manifest needs and that are not stored."""
    damaged_manifests: set[str] = field(default_factory=set)
    damaged_packs: set[str] = field(default_factory=set)
    """Names of packs whose list of chunks cannot be read."""
    hurt: dict[str, set[str]] = field(default_factory=dict)
    """Manifest id → its damaged or missing chunks."""

    @property
    def ok(self) -> bool:
        return not (self.damaged or self.missing or self.damaged_manifests or self.damaged_packs)


@dataclass(slots=True)
class Usage:
    """Space used by a store."""

    size: int = 0
    """Total bytes in the store."""
    chunks: int = 0
    packs: int = 0
    manifests: int = 0
    logical: int = 0
    """Bytes of all files of all manifests, without deduplication and compression."""
    trash: int = 0


def check(store: BlobStore, *, quarantine: bool = False, progress: Progress | None = None) -> CheckReport:
    """Read and verify the whole store.

    `quarantine` moves damaged chunks to damaged/: they are then missing, and pushing the same files again restores them.
    """
    report = CheckReport()
    _read_all(store, report, progress or (lambda _: None))
    if quarantine:
        _quarantine(store, report)
    report.damaged = {name for name in report.damaged if not _readable(store, name)}
    for name in list(store.list_manifests()):
        try:
            needed = set(chunk_hashes(store.get_manifest(name)))
        except Corrupt:
            report.damaged_manifests.add(name)
            continue
        except NotFound:
            continue
        missing = store.missing(needed) - report.damaged
        report.missing |= missing
        if bad := missing | (needed & report.damaged):
            report.hurt[name] = bad
    return report


def usage(store: BlobStore) -> Usage:
    """Return how much space a store uses."""
    out = Usage()
    for prefix in ("chunks/", PACKS, "manifests/", "pending/", "trash/", "damaged/", "tmp/"):
        for blob in store.blobs.list(prefix):
            out.size += blob.size
            out.trash += blob.size if prefix == "trash/" else 0
            out.packs += prefix == PACKS
    out.chunks = sum(1 for _ in store.list())
    for name in list(store.list_manifests()):
        out.manifests += 1
        try:
            out.logical += store.get_manifest(name).size
        except (Corrupt, NotFound):
            continue
    return out


def _read_all(store: BlobStore, report: CheckReport, progress: Progress) -> None:
    def work() -> Iterator[Callable[[], tuple[int, int, list[str]]]]:
        for blob in store.blobs.list("chunks/"):
            yield partial(_check_single, store, blob)
        for blob in store.blobs.list(PACKS):
            yield partial(_check_pack, store, blob, report)

    with ThreadPoolExecutor(THREADS, thread_name_prefix="shoal-check") as pool:
        for count, size, bad in pool.map(lambda job: job(), work()):
            report.chunks += count
            report.size += size
            report.damaged.update(bad)
            progress(size)


def _check_single(store: BlobStore, blob: Blob) -> tuple[int, int, list[str]]:
    name = key_name(blob.key)
    try:
        stored = store.blobs.get(blob.key)
    except NotFound:
        return 0, 0, []
    return 1, blob.size, [] if _is_intact(name, stored[:1], stored[1:]) else [name]


def _check_pack(store: BlobStore, blob: Blob, report: CheckReport) -> tuple[int, int, list[str]]:
    try:
        data = store.blobs.get(blob.key)
        entries = read_head(blob_name(blob), lambda at, n: data[at : at + n])
    except NotFound:
        return 0, 0, []
    except Corrupt:
        report.damaged_packs.add(blob_name(blob))
        return 0, blob.size, [e.hash for e in store.packs.index.entries(blob_name(blob))]
    view = memoryview(data)
    bad = [e.hash for e in entries if not _is_intact(e.hash, bytes([e.codec]), view[e.offset : e.offset + e.length])]
    return len(entries), blob.size, bad


def _is_intact(name: str, codec: bytes, payload: bytes | memoryview) -> bool:
    try:
        verify(name, decode(codec[0], payload)) if codec else verify(name, b"")
    except Corrupt:
        return False
    return True


def _readable(store: BlobStore, name: str) -> bool:
    """Check whether the store has an undamaged copy of a chunk."""
    try:
        store.get(name)
    except (Corrupt, NotFound):
        return False
    return True


def _quarantine(store: BlobStore, report: CheckReport) -> None:
    """Move damaged blobs away after copying the undamaged chunks out of them."""
    for name in report.damaged:
        if not _is_intact_single(store, name):
            store.blobs.move(chunk_key(name), f"damaged/{chunk_key(name)}")
    places = store.packs.index.find(report.damaged)
    for pack in {place.pack for found in places.values() for place in found} | report.damaged_packs:
        entries = store.packs.index.entries(pack)
        read = partial(store.blobs.get, key(pack))
        good = [e for e in entries if _is_intact(e.hash, bytes([e.codec]), read(e.offset, e.length))]
        if len(good) == len(entries) and pack not in report.damaged_packs:
            continue
        if store.packs.copy(pack, good) == pack:
            continue  # only the head was damaged, and the copy has replaced it
        store.blobs.move(key(pack), f"damaged/{key(pack)}")
        store.packs.index.drop([pack])


def _is_intact_single(store: BlobStore, name: str) -> bool:
    try:
        stored = store.blobs.get(chunk_key(name))
    except NotFound:
        return True
    return _is_intact(name, stored[:1], stored[1:])
