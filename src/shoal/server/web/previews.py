"""A dataset's files as a tree, and the beginning of one of them. Nothing here is deserialised: text, tables, pictures, or not shown."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Literal

from shoal.core.artifacts import FileEntry, Manifest
from shoal.core.errors import NotFound
from shoal.core.names import did_you_mean
from shoal.core.schema import View
from shoal.server.context import Context
from shoal.server.policy import Access
from shoal.server.services import find

HEAD = 128 << 10
_ROWS, _COLUMNS = 100, 50
_MAX_ENTRIES = 1000
_MAX_PICTURE = 32 << 20
_PICTURES = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
    "bmp": "image/bmp",
}


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
    """Entries left out."""


class Preview(View):
    path: str
    size: int
    kind: Literal["text", "table", "picture", "none"]
    text: str = ""
    rows: list[list[str]] = []
    cut: bool = False
    """Only the beginning is shown."""


def tree(ctx: Context, access: Access, dataset: str, folder: str) -> Tree:
    """One level: folders first, then files."""
    prefix = f"{folder.strip('/')}/" if folder.strip("/") else ""
    found: dict[str, TreeEntry] = {}
    for file in _manifest(ctx, access, dataset).files:
        if not file.path.startswith(prefix):
            continue
        name, slash, _ = file.path[len(prefix) :].partition("/")
        entry = found.setdefault(name, TreeEntry(name=name, path=prefix + name, is_folder=bool(slash), size=0, files=0))
        entry.size += file.size
        entry.files += 1
    entries = sorted(found.values(), key=lambda e: (not e.is_folder, e.name))
    if prefix and not entries:
        raise NotFound(f"There is no folder '{folder}' in dataset '{dataset}'.")
    return Tree(folder=prefix.rstrip("/"), entries=entries[:_MAX_ENTRIES], more=max(0, len(entries) - _MAX_ENTRIES))


def preview(ctx: Context, access: Access, dataset: str, path: str) -> Preview:
    entry = _entry(ctx, access, dataset, path)
    ending = path.rpartition(".")[2].lower()
    if ending in _PICTURES and entry.size <= _MAX_PICTURE:
        return Preview(path=path, size=entry.size, kind="picture")
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


def picture(ctx: Context, access: Access, dataset: str, path: str) -> tuple[str, Iterator[bytes]]:
    """(media type, bytes); raster formats only, which cannot hold script."""
    media = _PICTURES.get(path.rpartition(".")[2].lower())
    entry = _entry(ctx, access, dataset, path)
    if media is None or entry.size > _MAX_PICTURE:
        raise NotFound(f"'{path}' is not a picture that can be shown.")
    return media, _bytes(ctx, entry, entry.size)


def whole(ctx: Context, access: Access, dataset: str, path: str) -> tuple[FileEntry, Iterator[bytes]]:
    entry = _entry(ctx, access, dataset, path)
    return entry, _bytes(ctx, entry, entry.size)


def _manifest(ctx: Context, access: Access, dataset: str) -> Manifest:
    with ctx.db.read() as session:
        manifest_id = find.dataset(session, access, dataset).manifest_id
    return ctx.store.get_manifest(manifest_id or "")


def _entry(ctx: Context, access: Access, dataset: str, path: str) -> FileEntry:
    files = _manifest(ctx, access, dataset).files
    found = next((f for f in files if f.path == path), None)
    if found is None:
        near = did_you_mean(path, [f.path for f in files[:10_000]])
        raise NotFound(f"There is no file '{path}' in dataset '{dataset}'.{near}")
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
