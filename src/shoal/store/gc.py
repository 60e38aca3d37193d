"""Garbage collection that cannot race a writer, without locks, in a directory or a bucket.

A writer publishes its reference first (pending/…), then looks whether all chunks are there, then commits. The collector hides
what it thinks is garbage first (trash/<run>~…, where no writer finds it), then reads the references again, then puts back
what is referenced and not there otherwise, and deletes the rest. So for any chunk and any manifest:

- the reference was published before the second reading: the collector sees it and puts the chunk back;
- it was published after: the chunk was hidden by then, the writer finds it missing and sends it again.

There is no third case. Pending references are read before committed ones, so a commit in between is seen as one or the other.
A hidden chunk lies under its run's own name, so that runs at the same time cannot delete each other's finds; a run that died
leaves its trash to the next, and reads meanwhile find chunks there. The grace period is not needed for any of this: it only
keeps chunks of pushes still under way, so that these need not be sent twice.
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
from shoal.store.packs import PackedChunk, read_head
from shoal.store.packset import PREFIX as PACKS
from shoal.store.packset import blob_name

logger = logging.getLogger(__name__)

GRACE_S = 24 * 3600.0
_HASH = re.compile(rb'"hash":"([0-9a-f]{64})"')
_ABANDONED_S = 24 * 3600.0
"""Age at which a half-made write is taken for a crashed writer's, whatever the grace."""
_REWRITE_BELOW = 0.6
"""A pack is written again when less than this share of its bytes is still needed."""


@dataclass(slots=True)
class GcReport:
    manifests: int = 0
    chunks_kept: int = 0
    chunks_deleted: int = 0
    bytes_freed: int = 0
    packs_rewritten: int = 0
    restored: int = 0
    """Blobs put back because a writer came to need them meanwhile."""


@dataclass(slots=True)
class _Plan:
    singles: list[Blob] = field(default_factory=list)
    packs: list[tuple[Blob, list[PackedChunk]]] = field(default_factory=list)
    """(pack, chunks still needed from it)"""


def collect(
    store: BlobStore, *, grace_s: float = GRACE_S, dry_run: bool = False, clock: Callable[[], float] = time.time
) -> GcReport:
    """Delete what no manifest refers to and what was stored more than `grace_s` seconds ago.

    A damaged manifest raises Corrupt before anything is touched: what it refers to cannot be known.
    """
    report = GcReport()
    before = clock() - grace_s
    if not dry_run:
        _sweep(store, clock() - _ABANDONED_S)
    plan = _plan(store, references(store, report), before, report)
    if dry_run:
        return report
    _hide(store, plan, secrets.token_hex(8))
    _settle(store, report)
    return report


def references(store: BlobStore, report: GcReport | None = None) -> set[bytes]:
    """Hashes of all chunks that a committed or pending manifest needs."""
    needed: set[bytes] = set()
    for blob in list(store.blobs.list("pending/")):
        name = blob.key.removeprefix("pending/").partition("-")[0]
        with suppress(NotFound):  # committed by now, or given up
            needed.update(_hashes_in(store.manifest_bytes(blob.key, name)))
    for name in list(store.list_manifests()):
        with suppress(NotFound):  # deleted by now
            needed.update(_hashes_in(store.manifest_bytes(manifest_key(name), name)))
            if report:
                report.manifests += 1
    return needed


def _hashes_in(manifest: bytes) -> Iterator[bytes]:
    # Not parsed: a thousand large manifests would take minutes. Quotes in file names are escaped, so nothing else matches.
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


def _settle(store: BlobStore, report: GcReport) -> None:
    """Put back or delete what is in the trash, ours and that of runs that died."""
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
            return True  # `check` reports it; what it held cannot be told here
    return bool(store.missing(h for h in hashes if bytes.fromhex(h) in needed))


def _restore(store: BlobStore, place: str) -> bool:
    original = trashed_key(place)
    if not store.blobs.move(place, original):
        return False
    logger.info("Put %s back: it is needed after all.", original)
    if original.startswith(PACKS):
        with suppress(NotFound):  # another run, planned before, may have hidden it again; that one puts it back
            store.packs.index.add({_pack_name(original): store.packs.head(_pack_name(original))})
    return True


def _sweep(store: BlobStore, before: float) -> None:
    """What crashed writers left behind."""
    for prefix in ("pending/", "tmp/"):
        store.blobs.delete([blob.key for blob in store.blobs.list(prefix) if blob.modified < before])


def _pack_name(pack_key: str) -> str:
    return pack_key.removeprefix(PACKS)
