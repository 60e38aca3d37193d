"""Export of checkpoints to an S3-compatible store, the Hugging Face Hub or, on a private server, a folder of the machine.

Every chunk is read and verified before the first byte is written. A repeated export writes only what is not there yet.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from blake3 import blake3

from shoal.core.artifacts import FileEntry, Manifest
from shoal.core.checkpoints import CheckpointExport
from shoal.core.errors import Corrupt, InvalidSpec, NotFound, Refused, Unreachable
from shoal.server import lookup
from shoal.server.artifacts import export_to_hub
from shoal.server.artifacts.imports.partial_file import check_room
from shoal.server.artifacts.imports.s3 import Bucket, check_keys, check_obstore, parse_s3_url
from shoal.server.context import Context
from shoal.server.people import secrets
from shoal.server.policy import Access
from shoal.server.ssrf_guard import Guard, Stopped
from shoal.store.files import disk_errors
from shoal.store.materialize import materialize

logger = logging.getLogger(__name__)

HASH_KEY = "shoal-blake3"
"""Metadata key of an exported object with the BLAKE3 hash of its content, as `b3sum` prints it."""
_AT_ONCE = threading.BoundedSemaphore(4)
_WAIT_S = 10.0
_GROUP = 256 << 20


def export(ctx: Context, access: Access, reference: str, request: CheckpointExport) -> dict[str, int | str]:
    """Export a checkpoint; returns when all files are written."""
    with ctx.db.read() as session:
        found = lookup.checkpoint(session, access, reference)
    write = _writer(ctx, access, request)
    if not _AT_ONCE.acquire(timeout=_WAIT_S):
        raise Unreachable("Too many checkpoints are being exported at once; try again shortly.")
    try:
        manifest = ctx.store.get_manifest(found.manifest_id)
        digests = {file.path: _digest(ctx, file) for file in manifest.files}
        destination = write(manifest, digests)
    except (Corrupt, NotFound) as error:
        raise type(error)(f"Checkpoint '{reference}' cannot be exported: {error.message}", hint=error.hint) from error
    except Stopped:
        raise Unreachable("The server is stopping. Export again: what has been written already stays.") from None
    finally:
        _AT_ONCE.release()
    logger.info("checkpoint %s exported to %s", found.id, destination)
    return {"files": len(manifest.files), "bytes": manifest.size, "destination": destination}


Write = Callable[[Manifest, dict[str, str]], str]
"""Function that writes the files, given the hash of each, and returns the destination."""


def _writer(ctx: Context, access: Access, request: CheckpointExport) -> Write:
    """Return the writer for a destination; raise if the destination can never work."""
    if request.destination.startswith("s3://"):
        guard = Guard(private=ctx.private)
        place = parse_s3_url(request.destination, guard)
        check_obstore()
        check_keys(request.credentials)
        keys = secrets.open_secrets(ctx, access.workspace_id, request.credentials)
        return lambda manifest, digests: _to_bucket(
            ctx, Bucket(place, keys, guard, stop=lambda: ctx.live.closing), manifest, digests
        )
    if request.destination.startswith("hf://"):
        target = export_to_hub.parse_hub_target(request.destination)
        export_to_hub.check_client()
        export_to_hub.check_token(request.credentials)
        keys = secrets.open_secrets(ctx, access.workspace_id, request.credentials)
        return export_to_hub.hub_writer(ctx, target, keys)
    path = request.destination.removeprefix("file://")
    if not path.startswith("/") or not ctx.private:
        where = (
            "s3://bucket/prefix, hf://org/name or, as this server is private, to /a/folder"
            if ctx.private
            else "s3://bucket/prefix or hf://org/name"
        )
        raise InvalidSpec(f"Checkpoints are exported to {where}.")
    folder = _checked_folder(ctx, path)
    return lambda manifest, digests: _to_folder(ctx, folder, manifest, digests)


def _to_bucket(ctx: Context, bucket: Bucket, manifest: Manifest, digests: dict[str, str]) -> str:
    with bucket:
        for file in manifest.files:
            if ctx.live.closing:
                raise Stopped
            wanted = (file.size, digests[file.path])
            if _in_bucket(bucket, file.path) == wanted:
                continue
            bucket.put(file.path, file.size, partial(_content, ctx, file), {HASH_KEY: digests[file.path]})
            if _in_bucket(bucket, file.path) != wanted:
                raise Refused(
                    f"{bucket.place.display_url}/{file.path} differs from what was just written there; "
                    "another program may be writing to it."
                )
        return bucket.place.display_url


def _in_bucket(bucket: Bucket, path: str) -> tuple[int, str | None] | None:
    found = bucket.attributes(path)
    return (found[0], found[1].get(HASH_KEY)) if found else None


def _to_folder(ctx: Context, folder: Path, manifest: Manifest, digests: dict[str, str]) -> str:
    missing = [file for file in manifest.files if not _in_folder(folder, file, digests[file.path])]
    try:
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            check_room(folder / "x", sum(file.size for file in missing))
            for group in _groups(missing):
                if ctx.live.closing:
                    raise Stopped
                materialize(Manifest(files=group), ctx.store.get, folder, verify=False, merge=True)
                _sync(folder, group)
    except OSError as error:
        raise Refused(f"{folder} cannot be written: {error.strerror}.") from error
    return str(folder)


def _in_folder(folder: Path, file: FileEntry, digest: str) -> bool:
    path = folder / file.path
    if path.is_symlink() or not path.is_file() or path.stat().st_size != file.size:
        return False
    if os.access(path, os.X_OK) != file.executable:
        return False
    hasher = blake3()
    with path.open("rb") as opened:
        while block := opened.read(1 << 20):
            hasher.update(block)
    return bool(hasher.hexdigest() == digest)


def _checked_folder(ctx: Context, path: str) -> Path:
    folder = Path(os.path.realpath(path))
    if folder == ctx.layout.root or ctx.layout.root.resolve() in folder.parents:
        raise InvalidSpec(f"{folder} belongs to the server itself; give another folder.")
    if folder.exists() and not folder.is_dir():
        raise InvalidSpec(f"{folder} is not a folder.")
    return folder


def _groups(files: list[FileEntry]) -> Iterator[list[FileEntry]]:
    """Yield groups of files, small enough that an interrupted export has little to repeat."""
    group: list[FileEntry] = []
    for file in files:
        if group and sum(f.size for f in group) + file.size > _GROUP:
            yield group
            group = []
        group.append(file)
    if group:
        yield group


def _sync(folder: Path, files: list[FileEntry]) -> None:
    written = {folder / file.path for file in files}
    for path in [*written, *{path.parent for path in written}]:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _digest(ctx: Context, file: FileEntry) -> str:
    hasher = blake3()
    for block in _content(ctx, file):
        hasher.update(block)
    return str(hasher.hexdigest())


def _content(ctx: Context, file: FileEntry) -> Iterator[bytes]:
    """Yield a file's chunks, each verified by the store; raise Stopped when the server is closing."""
    for chunk in file.chunks:
        if ctx.live.closing:
            raise Stopped
        yield ctx.store.get(chunk.hash)
