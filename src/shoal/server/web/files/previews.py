"""Files of a dataset or of a job's code, as a tree and with previews. Only text, tables and images are shown; nothing else is
deserialised in this process."""

from __future__ import annotations

import csv
import io
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from shoal.core.artifacts import FileEntry, Manifest
from shoal.core.errors import NotFound
from shoal.core.names import did_you_mean
from shoal.core.schema import View
from shoal.server import lookup
from shoal.server.context import Context
from shoal.server.models.sources import Source
from shoal.server.policy import Access
from shoal.server.web.files import arrow

HEAD = 128 << 10
_ROWS, _COLUMNS = 100, 50
_MAX_ENTRIES = 1000
_MAX_PICTURE = 32 << 20
_MOST_KEPT, _MOST_KEPT_FILES = 8, 50_000
_recent: dict[str, Manifest] = {}
_lock = threading.Lock()
_PICTURES = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
    "bmp": "image/bmp",
}


@dataclass(frozen=True, slots=True)
class Files:
    """Files that a page lets users browse."""

    manifest: Manifest
    owner: str
    """Owner as named in messages: dataset 'words'."""


class TreeEntry(View):
    name: str
    path: str
    is_folder: bool
    size: int
    files: int


class Tree(View):
    folder: str
    entries: list[TreeEntry]
    more: int
    """Number of entries that are not listed."""


class Preview(View):
    path: str
    size: int
    kind: Literal["text", "table", "picture", "none"]
    text: str = ""
    rows: list[list[str]] = []
    about: str = ""
    """Additional text, such as why the file is not shown."""
    cut: bool = False
    """True if only the beginning is shown."""


def of_dataset(ctx: Context, access: Access, dataset: str) -> Files:
    with ctx.db.read() as session:
        found = lookup.dataset(session, access, dataset)
    return Files(_manifest(ctx, found.manifest_id or ""), f"dataset '{found.name}'")


def of_job(ctx: Context, access: Access, job: str) -> Files:
    """Return the files of a job's code."""
    with ctx.db.read() as session:
        found = lookup.job(session, access, job)
        manifest_id = session.get_one(Source, found.source_id).manifest_id
    return Files(_manifest(ctx, manifest_id), f"the code of job '{found.name}'")


def _manifest(ctx: Context, manifest_id: str) -> Manifest:
    """Return a manifest. The last few are cached, because a user who browses files opens the next folder soon."""
    with _lock:
        found = _recent.pop(manifest_id, None)
    found = found or ctx.store.get_manifest(manifest_id)
    if len(found.files) <= _MOST_KEPT_FILES:
        with _lock:
            _recent[manifest_id] = found
            while len(_recent) > _MOST_KEPT:
                del _recent[next(iter(_recent))]
    return found


def tree(files: Files, folder: str) -> Tree:
    """Return one level of the tree: folders first, then files."""
    prefix = f"{folder.strip('/')}/" if folder.strip("/") else ""
    found: dict[str, TreeEntry] = {}
    for file in files.manifest.files:
        if not file.path.startswith(prefix):
            continue
        name, slash, _ = file.path[len(prefix) :].partition("/")
        entry = found.get(name)
        if entry is None:
            entry = TreeEntry(name=name, path=prefix + name, is_folder=bool(slash), size=0, files=0)
            found[name] = entry
        entry.size += file.size
        entry.files += 1
    entries = sorted(found.values(), key=lambda e: (not e.is_folder, e.name))
    if prefix and not entries:
        raise NotFound(f"There is no folder '{folder}' in {files.owner}.")
    return Tree(folder=prefix.rstrip("/"), entries=entries[:_MAX_ENTRIES], more=max(0, len(entries) - _MAX_ENTRIES))


def preview(ctx: Context, files: Files, path: str) -> Preview:
    entry = _entry(files, path)
    ending = path.rpartition(".")[2].lower()
    if ending in _PICTURES and entry.size <= _MAX_PICTURE:
        return Preview(path=path, size=entry.size, kind="picture")
    if ending in arrow.ENDINGS:
        return _columns(ctx, entry, arrow.ENDINGS[ending])
    head = b"".join(_bytes(ctx, entry, HEAD))
    cut = entry.size > len(head)
    if b"\0" in head:
        return Preview(path=path, size=entry.size, kind="none")
    text = head.decode("utf-8", "replace")
    if text.count("�") > len(text) // 50 + 1:
        return Preview(path=path, size=entry.size, kind="none")
    if ending in ("csv", "tsv"):
        rows = _table(text, "\t" if ending == "tsv" else ",", cut=cut)
        return Preview(path=path, size=entry.size, kind="table", rows=rows[:_ROWS], cut=cut or len(rows) > _ROWS)
    if ending == "json" and not cut:
        text = _pretty(text)
    return Preview(path=path, size=entry.size, kind="text", text=text, cut=cut)


def _columns(ctx: Context, entry: FileEntry, kind: str) -> Preview:
    found = arrow.beginning(ctx, entry, kind, rows=_ROWS, columns=_COLUMNS)
    shown: Literal["table", "none"] = "table" if found.rows else "none"
    is_cut = len(found.rows) > _ROWS
    return Preview(path=entry.path, size=entry.size, kind=shown, rows=found.rows, about=found.about, cut=is_cut)


def picture(ctx: Context, files: Files, path: str) -> tuple[str, Iterator[bytes]]:
    """Return the media type and the bytes of an image. Only raster formats: they cannot contain scripts."""
    media = _PICTURES.get(path.rpartition(".")[2].lower())
    entry = _entry(files, path)
    if media is None or entry.size > _MAX_PICTURE:
        raise NotFound(f"'{path}' is not an image that can be shown.")
    return media, _bytes(ctx, entry, entry.size)


def whole(ctx: Context, files: Files, path: str) -> tuple[FileEntry, Iterator[bytes]]:
    entry = _entry(files, path)
    return entry, _bytes(ctx, entry, entry.size)


def _entry(files: Files, path: str) -> FileEntry:
    found = next((f for f in files.manifest.files if f.path == path), None)
    if found is None:
        near = did_you_mean(path, [f.path for f in files.manifest.files[:10_000]])
        raise NotFound(f"There is no file '{path}' in {files.owner}.{near}")
    return found


def _bytes(ctx: Context, entry: FileEntry, count: int) -> Iterator[bytes]:
    for chunk in entry.chunks:
        if count <= 0:
            return
        data = ctx.store.get(chunk.hash)[:count]
        count -= len(data)
        yield data


def _table(text: str, delimiter: str, *, cut: bool) -> list[list[str]]:
    lines = text.splitlines(keepends=True)
    if cut and len(lines) > 1:
        lines = lines[:-1]
    try:
        rows = csv.reader(io.StringIO("".join(lines), newline=""), delimiter=delimiter)
        return [row[:_COLUMNS] for row, _ in zip(rows, range(_ROWS + 1), strict=False)]
    except csv.Error:
        return [[line] for line in lines[: _ROWS + 1]]


def _pretty(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text
