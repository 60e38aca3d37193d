"""Downloads for plain HTTP clients: one file of a checkpoint, or all as a zip that is written while it is sent.

Memory use is constant. Names from requests only select entries of the manifest; they are never used as paths.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import quote

from shoal.core.artifacts import FileEntry, Manifest
from shoal.core.errors import Corrupt, NotFound
from shoal.core.names import did_you_mean
from shoal.server import lookup
from shoal.server.artifacts import checkpoints
from shoal.server.context import Context
from shoal.server.models.checkpoints import Checkpoint
from shoal.server.models.sources import Source
from shoal.server.policy import Access
from shoal.store.manifest import chunk_hashes

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_OLDEST = datetime(1980, 1, 1)
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Download:
    """Status, headers and body of a response."""

    body: Iterator[bytes]
    media_type: str
    headers: dict[str, str] = field(default_factory=dict)
    status: int = 200


def file(ctx: Context, access: Access, reference: str, path: str, wanted: str | None = None) -> Download:
    """Return one file of a checkpoint. `wanted`: a Range header with a single range, so that downloads can be resumed."""
    with ctx.db.read() as session:
        found = lookup.checkpoint(session, access, reference)
    return file_of(ctx, found, path, wanted, reference)


def file_of(
    ctx: Context, found: Checkpoint, path: str, wanted: str | None = None, reference: str | None = None
) -> Download:
    """Return one file of a checkpoint row; `reference` is the name used in errors."""
    reference = reference or found.id
    manifest = ctx.store.get_manifest(found.manifest_id)
    entry = next((f for f in manifest.files if f.path == path), None)
    if entry is None:
        near = did_you_mean(path, [f.path for f in manifest.files])
        raise NotFound(
            f"There is no file '{path}' in checkpoint '{reference}'.{near}",
            hint=f"shoal checkpoint inspect {found.id} --files",
        )
    _refuse_incomplete(ctx, Manifest(files=[entry]), reference)
    headers = plain_headers(path.rpartition("/")[2]) | {"Accept-Ranges": "bytes"}
    asked = _range(wanted, entry.size)
    if asked is None:
        headers["Content-Length"] = str(entry.size)
        return Download(_bytes(ctx, entry, 0, entry.size), "application/octet-stream", headers)
    start, end = asked
    if start >= end:
        return Download(iter(()), "application/octet-stream", headers | {"Content-Range": f"bytes */{entry.size}"}, 416)
    headers |= {"Content-Length": str(end - start), "Content-Range": f"bytes {start}-{end - 1}/{entry.size}"}
    return Download(_bytes(ctx, entry, start, end), "application/octet-stream", headers, 206)


def archive(ctx: Context, access: Access, reference: str) -> Download:
    """Return all files of a checkpoint as a zip, in a folder with the zip's own name."""
    with ctx.db.read() as session:
        found = lookup.checkpoint(session, access, reference)
    manifest = ctx.store.get_manifest(found.manifest_id)
    _refuse_incomplete(ctx, manifest, reference)
    return _zipped(ctx, manifest, found)


def newest_archive(ctx: Context, access: Access, job: str) -> Download:
    """Return the newest complete checkpoint of a job as a zip, with the parts of all nodes."""
    with ctx.db.read() as session:
        row = lookup.job(session, access, job)
    newest = checkpoints.newest_intact(ctx, row.id)
    if newest is None:
        raise NotFound(f"Job '{row.name}' has no checkpoint (yet).", hint=f"shoal training checkpoints {row.name}")
    with ctx.db.read() as session:
        found = lookup.checkpoint(session, access, newest[0])
    return _zipped(ctx, newest[1], found)


def source_archive(ctx: Context, access: Access, job: str) -> Download:
    """Return a job's code as it was submitted, as a zip."""
    with ctx.db.read() as session:
        row = lookup.job(session, access, job)
        source = session.get_one(Source, row.source_id)
    manifest = ctx.store.get_manifest(source.manifest_id)
    if ctx.store.missing(chunk_hashes(manifest)):
        raise Corrupt(f"Parts of the code of job '{row.name}' are missing in the store.", hint="shoal store check")
    stem = f"{row.name}-code"
    body = _zip(ctx, manifest, stem, max(source.created_at.replace(tzinfo=None), _OLDEST))
    return Download(body, "application/zip", plain_headers(f"{stem}.zip"))


def _zipped(ctx: Context, manifest: Manifest, row: Checkpoint) -> Download:
    parts = [row.job_name, row.name if row.name != "." else None]
    stem = "-".join(part.replace("/", "-") for part in parts if part) or row.id
    body = _zip(ctx, manifest, stem, max(row.created_at.replace(tzinfo=None), _OLDEST))
    return Download(body, "application/zip", plain_headers(f"{stem}.zip") | {"X-Shoal-Checkpoint": row.id})


def _zip(ctx: Context, manifest: Manifest, folder: str, when: datetime) -> Iterator[bytes]:
    """Yield a zip of the files. Not compressed: weights hardly shrink, and this costs no CPU time."""
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as made:
        for entry in manifest.files:
            info = zipfile.ZipInfo(f"{folder}/{entry.path}", when.timetuple()[:6])
            info.external_attr = (0o100755 if entry.executable else 0o100644) << 16
            info.file_size = entry.size
            with made.open(info, "w", force_zip64=entry.size >= zipfile.ZIP64_LIMIT) as member:
                for chunk in entry.chunks:
                    member.write(ctx.store.get(chunk.hash))
                    if sink.size >= _BLOCK:
                        yield sink.pop()
    yield sink.pop()


class _Sink(io.RawIOBase):
    """Buffer that zipfile writes to and `pop` empties. It is not seekable, so zipfile never goes back to change a header."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._pieces.append(bytes(data))
        self.size += len(data)
        return len(data)

    def pop(self) -> bytes:
        taken, self._pieces, self.size = b"".join(self._pieces), [], 0
        return taken


def _bytes(ctx: Context, entry: FileEntry, start: int, end: int) -> Iterator[bytes]:
    offset = 0
    for chunk in entry.chunks:
        first, last = max(start - offset, 0), min(end - offset, chunk.size)
        if first < last:
            data = ctx.store.get(chunk.hash)
            yield data if last - first == len(data) else data[first:last]
        offset += chunk.size


def _refuse_incomplete(ctx: Context, manifest: Manifest, reference: str) -> None:
    """Raise if chunks are missing, before the first byte is sent. Damage that is found later breaks the connection."""
    if ctx.store.missing(chunk_hashes(manifest)):
        raise Corrupt(f"Parts of checkpoint '{reference}' are missing in the store.", hint="shoal store check")


def plain_headers(name: str, *, inline: bool = False) -> dict[str, str]:
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    return {
        "Content-Disposition": f"{'inline' if inline else 'attachment'}; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}",
        "X-Content-Type-Options": "nosniff",
    }


def _range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return (first, last + 1) of a single range; None if the whole file is sent."""
    match = _RANGE.fullmatch((header or "").replace(" ", ""))
    if match is None or match.group() == "bytes=-":
        return None
    first, last = match[1], match[2]
    if not first:
        return max(0, size - int(last)), size
    if last and int(last) < int(first):
        return None
    return int(first), min(int(last) + 1, size) if last else size
