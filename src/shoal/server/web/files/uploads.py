"""Uploads from a browser. Files arrive in parts in server/uploads/<workspace>/<upload>, become a dataset or a source, and are
then removed there.

Parts may arrive in any order and several at once; each writes its own bytes of the file. A part is recorded in `parts.jsonl`
after its bytes are on the disk, so an upload that was interrupted, in the browser or here, continues with the parts that are
not recorded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from shoal.core.artifacts import SourceView, check_path
from shoal.core.datasets import DatasetBegin, DatasetCommitted
from shoal.core.durable import flush
from shoal.core.errors import InvalidSpec, NotFound, Refused, SourceTooLarge
from shoal.core.ids import is_id, new_id
from shoal.core.schema import View
from shoal.server.artifacts import datasets, sources
from shoal.server.artifacts.commit import store_packed
from shoal.server.artifacts.imports.partial_file import check_room
from shoal.server.artifacts.interrupted_uploads import PARTS, drop_expired_in, uploads_dir
from shoal.server.context import Context
from shoal.server.notebooks import service as notebooks
from shoal.server.policy import Access
from shoal.store.archives.types import archive_kind
from shoal.store.archives.unpack import Limits, unpack
from shoal.store.files import disk_errors
from shoal.store.materialize import remove_tree
from shoal.store.pack import PackedTree, pack_tree

PART = 8 << 20
"""Bytes of one part; a browser sends one part per request."""
MAX_FILES = 50_000
_SCRIPTS = (".py", ".sh")
Purpose = Literal["dataset", "source"]


class Upload(View):
    id: str
    part: int
    max_bytes: int


class Arrived(View):
    """State of an upload that has begun."""

    id: str
    part: int
    done: dict[str, list[tuple[int, int]]]
    """Path → (start, end) of the bytes that have arrived, in order and without overlaps."""


class Sent(View):
    """Code that has become a source."""

    source: SourceView
    notes: list[str]
    """One line per entry of an archive that was skipped, with the reason."""


def begin(ctx: Context, access: Access, size: int, purpose: Purpose = "dataset") -> Upload:
    """Begin an upload of `size` bytes. Raise if it is too large or the disk has no room, before anything is sent."""
    limit = ctx.settings.max_import_gb * 1_000_000_000
    if purpose == "source":
        limit = ctx.settings.max_source_mb << 20
        if size > limit:
            raise SourceTooLarge(
                f"{size / 1e6:.0f} MB are over this server's limit of {limit >> 20} MiB for code. Put data into datasets."
            )
    elif size > limit:
        raise SourceTooLarge(
            f"{size / 1e9:.1f} GB are over this server's limit of {ctx.settings.max_import_gb} GB.",
            hint="shoal dataset push NAME --file PATH",
        )
    folder = _root(ctx, access)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        check_room(folder, 2 * size)
        drop_expired_in(folder)
        ident = new_id("up")
        (folder / ident / "tree").mkdir(parents=True, mode=0o700)
    return Upload(id=ident, part=PART, max_bytes=limit)


def put_part(ctx: Context, access: Access, ident: str, path: str, offset: int, data: bytes) -> int:
    """Write a part at its offset and return the size of the file so far. Parts come in any order and may be sent again."""
    folder = _folder(ctx, access, ident)
    target = folder / "tree" / check_path(path)
    if offset < 0 or offset + len(data) > ctx.settings.max_import_gb * 1_000_000_000:
        raise InvalidSpec("This part exceeds the maximum size of a file.")
    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.pwrite(fd, data, offset)
            flush(fd)
            have = os.fstat(fd).st_size
        finally:
            os.close(fd)
        _record(folder, path, offset, offset + len(data))
    return have


def arrived(ctx: Context, access: Access, ident: str) -> Arrived:
    """Return the parts that an interrupted upload already has."""
    return Arrived(id=ident, part=PART, done=_parts(_folder(ctx, access, ident)))


def to_dataset(ctx: Context, access: Access, ident: str, name: str, *, unpacked: bool) -> DatasetCommitted:
    """Create a dataset version from a complete upload, and remove the upload."""
    request = DatasetBegin(name=name, origin={"kind": "upload", "via": "console"})
    folder = _folder(ctx, access, ident)
    tree = folder / "tree"
    with disk_errors(folder):
        files = _arrived(folder, f"shoal dataset push {name}")
        if unpacked and len(files) == 1 and archive_kind(files[0].name):
            tree, _ = _unpacked(ctx, folder, files[0], ctx.settings.max_import_gb << 30)
        packed = pack_tree(tree, ignore=False)
        made = _commit(ctx, access, request, packed)
    remove_tree(folder)
    return made


def to_source(ctx: Context, access: Access, ident: str, title: str) -> Sent:
    """Create a source from a complete upload, and remove the upload. `title` is the name of the file or folder on the
    user's disk."""
    folder = _folder(ctx, access, ident)
    tree, notes = folder / "tree", list[str]()
    with disk_errors(folder):
        files = _arrived(folder, "shoal training run NAME -- train.py")
        kind = "file" if len(files) == 1 else "folder"
        if kind == "file" and archive_kind(files[0].name):
            tree, notes = _unpacked(ctx, folder, files[0], ctx.settings.max_source_mb << 20)
            kind = "archive"
        notebook = _only_notebook(tree)
        shown = "".join(c for c in title if c.isprintable())[:255]
        origin = {"kind": kind, "path": shown, "via": "console"}
        made = sources.from_tree(ctx, access, tree, origin)
        if notebook:
            made = notebooks.in_source(ctx, access, made.id, notebook).source
    remove_tree(folder)
    return Sent(source=made, notes=notes)


def give_up(ctx: Context, access: Access, ident: str) -> None:
    remove_tree(_folder(ctx, access, ident))


def _commit(ctx: Context, access: Access, request: DatasetBegin, packed: PackedTree) -> DatasetCommitted:
    dataset = datasets.begin(ctx, access, request)
    try:
        return store_packed(
            ctx, access.workspace_id, packed, lambda: datasets.commit(ctx, access, dataset.id, packed.manifest)
        )
    except Refused as error:
        datasets.fail(ctx, access, dataset.id, error.message)
        raise


def _record(folder: Path, path: str, start: int, end: int) -> None:
    # Appended by one write, so that lines of parts that arrive together do not mix. The first line break ends a line that a
    # crash has cut off.
    line = b"\n" + json.dumps([path, start, end]).encode() + b"\n"
    fd = os.open(folder / PARTS, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, line)
    finally:
        os.close(fd)


def _parts(folder: Path) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    try:
        lines = (folder / PARTS).read_bytes().splitlines()
    except FileNotFoundError:
        return found
    for line in lines:
        try:
            path, start, end = json.loads(line)
        except ValueError:
            continue  # a line that a crash has cut off; its part is sent again
        found.setdefault(path, []).append((start, end))
    return {path: merged(spans) for path, spans in found.items()}


def merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans in order, those that touch or overlap joined."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def _arrived(folder: Path, instead: str) -> list[Path]:
    """Return the files of a complete upload; raise if a part of one has not arrived."""
    tree = folder / "tree"
    files = [p for p in tree.rglob("*") if p.is_file()]
    parts = _parts(folder)
    for file in files:
        path = file.relative_to(tree).as_posix()
        if parts.get(path) != [(0, file.stat().st_size)]:
            raise Refused(f"A part of '{path}' has not arrived.", hint="Choose the same files again to send the rest.")
    if not files:
        raise InvalidSpec("This upload is empty.")
    if len(files) > MAX_FILES:
        raise InvalidSpec(f"{len(files)} files are too many for a browser.", hint=instead)
    return files


def _unpacked(ctx: Context, folder: Path, archive: Path, max_bytes: int) -> tuple[Path, list[str]]:
    into = folder / "unpacked"
    remove_tree(into)  # left by an earlier try
    return into, unpack(archive, into, limits=Limits(max_bytes=max_bytes, max_ratio=ctx.settings.max_archive_ratio))


def _only_notebook(tree: Path) -> str | None:
    """Return the only notebook of code without scripts; None if there are scripts. Raise if a job could run nothing."""
    paths = sorted(p.relative_to(tree).as_posix() for p in tree.rglob("*") if p.is_file())
    if any(path.endswith(_SCRIPTS) for path in paths):
        return None
    found = [path for path in paths if path.endswith(".ipynb")]
    if not found:
        raise InvalidSpec("It contains no script (.py or .sh) and no notebook that a job could run.")
    if len(found) > 1:
        raise InvalidSpec(f"It contains {len(found)} notebooks and no script: upload only the notebook to run.")
    return found[0]


def _root(ctx: Context, access: Access) -> Path:
    return uploads_dir(ctx) / access.workspace_id


def _folder(ctx: Context, access: Access, ident: str) -> Path:
    folder = _root(ctx, access) / ident
    if not is_id(ident, "up") or not folder.is_dir():
        raise NotFound("There is no such upload; it may have expired.")
    return folder
