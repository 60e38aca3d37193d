"""Garbage collection without locks, in a directory or a bucket.

Why it is safe against concurrent writers: a writer first publishes its references (pending/…), then checks that all chunks
are stored, then commits. The collector first hides what looks like garbage (trash/<run>~…, where no writer finds it), then
reads all references again, restores what is referenced and has no other copy, and deletes the rest. For any chunk and any
manifest there are two cases:

- the reference was published before the second read: the collector sees it and restores the chunk;
- it was published after: the chunk was already hidden, so the writer finds it missing and sends it again.

Pending references are read before committed ones, so a manifest committed in between is seen in at least one place. Hidden
blobs carry the name of their run, so concurrent runs cannot delete each other's. After a crash the trash stays; readers look
there, and the next run restores or deletes it. Safety does not depend on the grace period: it only keeps the chunks of
running pushes, so that they need not be sent twice.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from shoal.core.errors import Corrupt, NotFound
from shoal.store.blobs import Blob
from shoal.store.blobstore import BlobStore, key_name, manifest_key, trash_key, trashed_key
from shoal.store.packfiles.collection import PREFIX as PACKS
from shoal.store.packfiles.collection import blob_name
from shoal.store.packfiles.packfile import PackedChunk, read_head

logger = logging.getLogger(__name__)

GRACE_S = 24 * 3600.0
"""Default age in seconds below which unreferenced chunks are kept."""
_HASH = re.compile(rb'"hash":"([0-9a-f]{64})"')
_ABANDONED_S = 24 * 3600.0
"""Age at which an unfinished write counts as left by a crashed writer, whatever the grace period."""
_REWRITE_BELOW = 0.6
"""Share of needed bytes below which a pack is rewritten."""


@dataclass(slots=True)
class GcReport:
    """Result of `collect`."""

    manifests: int = 0
    chunks_kept: int = 0
    chunks_deleted: int = 0
    bytes_freed: int = 0
    packs_rewritten: int = 0
    restored: int = 0
    """Blobs restored because a writer needed them in the meantime."""


@dataclass(slots=True)
class _Plan:
    singles: list[Blob] = field(default_factory=list)
    packs: list[tuple[Blob, list[PackedChunk]]] = field(default_factory=list)
    """Packs to remove or rewrite, each with the chunks still needed from it."""


def collect(
    store: BlobStore, *, grace_s: float = GRACE_S, dry_run: bool = False, clock: Callable[[], float] = time.time
) -> GcReport:
    """Delete chunks that no manifest refers to and that were stored more than `grace_s` seconds ago.

    Raises Corrupt before deleting anything if a manifest is damaged, because its references are unknown then. `dry_run` only
    reports.
    """
    report = GcReport()
    before = clock() - grace_s
    if not dry_run:
        _sweep(store, clock() - _ABANDONED_S)
    plan = _plan(store, references(store, report), before, report)
    if dry_run:
        return report
    _hide(store, plan, secrets.token_hex(8))
    _empty_trash(store, report)
    return report


def references(store: BlobStore, report: GcReport | None = None) -> set[bytes]:
    """Return the hashes of all chunks that a committed or pending manifest needs."""
    needed: set[bytes] = set()
    for blob in list(store.blobs.list("pending/")):
        name = blob.key.removeprefix("pending/").partition("-")[0]
        with suppress(NotFound):  # committed or cancelled in the meantime
            needed.update(_hashes_in(store.manifest_bytes(blob.key, name)))
    for name in list(store.list_manifests()):
        with suppress(NotFound):  # deleted in the meantime
            needed.update(_hashes_in(store.manifest_bytes(manifest_key(name), name)))
            if report:
                report.manifests += 1
    return needed


def _hashes_in(manifest: bytes) -> Iterator[bytes]:
    # Parsing a thousand large manifests would take minutes. Quotes in file names are escaped, so only hashes match.
    return (bytes.fromhex(found[1].decode()) for found in _HASH.finditer(manifest))


def _plan(store: BlobStore, needed: set[bytes], before: float, report: GcReport) -> _Plan:
    plan = _Plan()
    for blob in store.blobs.list("chunks/"):
        if bytes.fromhex(key_name(blob.key)) in needed or blob.modified >= before:
            report.chunks_kept += 1
        else:
            plan.singles.append(blob)
            report.chunks_deleted += 1
            report.bytes_freed += blob.size
    for blob, entries in store.packs.all():
        live = [e for e in entries if bytes.fromhex(e.hash) in needed]
        whole = sum(e.length for e in store.packs.index.entries(blob_name(blob)))
        if blob.modified >= before or (live and sum(e.length for e in live) >= _REWRITE_BELOW * whole):
            report.chunks_kept += len(entries)
            continue
        plan.packs.append((blob, live))
        report.chunks_kept += len(live)
        report.chunks_deleted += len(entries) - len(live)
        report.bytes_freed += blob.size - sum(e.length for e in live)
        report.packs_rewritten += bool(live)
    return plan


def _hide(store: BlobStore, plan: _Plan, run: str) -> None:
    for blob in plan.singles:
        store.blobs.move(blob.key, trash_key(run, blob.key))
    for blob, live in plan.packs:
        try:
            store.packs.copy(blob_name(blob), live)
        except NotFound:
            continue  # another run was faster
        if store.blobs.move(blob.key, trash_key(run, blob.key)):
            store.packs.index.drop([blob_name(blob)])


def _empty_trash(store: BlobStore, report: GcReport) -> None:
    """Restore or delete all blobs in the trash, also those of crashed runs."""
    trash = [blob.key for blob in store.blobs.list("trash/")]
    if not trash:
        return
    needed = references(store)
    doomed = []
    for place in trash:
        if _is_needed(store, place, needed):
            report.restored += _restore(store, place)
        else:
            doomed.append(place)
    store.blobs.delete(doomed)


def _is_needed(store: BlobStore, place: str, needed: set[bytes]) -> bool:
    original = trashed_key(place)
    if not original.startswith(PACKS):
        hashes = [key_name(original)]
    else:
        try:
            hashes = [e.hash for e in read_head(_pack_name(original), partial(store.blobs.get, place))]
        except NotFound:
            return False
        except Corrupt:
            return True  # its chunks are unknown; `check` reports it
    return bool(store.missing(h for h in hashes if bytes.fromhex(h) in needed))


def _restore(store: BlobStore, place: str) -> bool:
    original = trashed_key(place)
    if not store.blobs.move(place, original):
        return False
    logger.info("Restored %s: it is still needed.", original)
    if original.startswith(PACKS):
        with suppress(NotFound):  # a concurrent run may have hidden it again; it restores it too
            store.packs.index.add({_pack_name(original): store.packs.head(_pack_name(original))})
    return True


def _sweep(store: BlobStore, before: float) -> None:
    """Delete the leftovers of crashed writers."""
    for prefix in ("pending/", "tmp/"):
        store.blobs.delete([blob.key for blob in store.blobs.list(prefix) if blob.modified < before])


def _pack_name(pack_key: str) -> str:
    return pack_key.removeprefix(PACKS)
