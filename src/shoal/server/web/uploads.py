"""Files from a browser: they arrive in parts below server/uploads/<workspace>/<upload>, become a dataset or a source, and are gone here."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal

from shoal.core.artifacts import SourceView, check_path
from shoal.core.datasets import DatasetBegin, DatasetCommitted
from shoal.core.errors import InvalidSpec, NotFound, Refused, SourceTooLarge
from shoal.core.ids import is_id, new_id
from shoal.core.schema import View
from shoal.server.context import Context
from shoal.server.policy import Access
from shoal.server.services import chunks, datasets, notebooks, sources
from shoal.server.services.import_part import check_room
from shoal.store.archive_members import archive_kind
from shoal.store.archives import Limits, unpack
from shoal.store.files import disk_errors
from shoal.store.manifest import chunk_hashes
from shoal.store.materialize import remove_tree
from shoal.store.pack import PackedTree, pack_tree
from shoal.store.transfer import upload

PART = 8 << 20
"""Bytes a browser sends at once; one request, one part."""
MAX_FILES = 50_000
_OLD_S = 24 * 3600.0
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
_SCRIPTS = (".py", ".sh")
Purpose = Literal["dataset", "source"]
_TRIES = 3


class Upload(View):
    id: str
    part: int
    max_bytes: int


class Sent(View):
    """Code that has become a source."""

    source: SourceView
    notes: list[str]
    """One line per thing of an archive that was left out, with the reason."""


def begin(ctx: Context, access: Access, size: int, purpose: Purpose = "dataset") -> Upload:
    """Announce an upload of so many bytes; what is too large or has no room is refused before it travels."""
    limit = ctx.settings.max_import_gb * 1_000_000_000
    if purpose == "source":
        limit = ctx.settings.max_source_mb << 20
        if size > limit:
            raise SourceTooLarge(
                f"{size / 1e6:.0f} MB are over this server's limit of {limit >> 20} MiB for code. Data belongs into datasets."
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
        _drop_old(folder)
        ident = new_id("up")
        (folder / ident / "tree").mkdir(parents=True, mode=0o700)
    return Upload(id=ident, part=PART, max_bytes=limit)


def put_part(ctx: Context, access: Access, ident: str, path: str, offset: int, data: bytes) -> int:
    """Write a part at its place; again is harmless. Returns how much of the file is here."""
    target = _folder(ctx, access, ident) / "tree" / check_path(path)
    if offset < 0 or offset + len(data) > ctx.settings.max_import_gb * 1_000_000_000:
        raise InvalidSpec("That part lies outside what a file may be.")
    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            have = os.fstat(fd).st_size
            if offset > have:
                raise Refused(f"The part at {offset} does not follow what is here.", details={"have": have})
            os.pwrite(fd, data, offset)
            return max(have, offset + len(data))
        finally:
            os.close(fd)


def to_dataset(ctx: Context, access: Access, ident: str, name: str, *, unpacked: bool) -> DatasetCommitted:
    """All parts are here: make a version of them."""
    request = DatasetBegin(name=name, origin={"kind": "upload", "via": "console"})
    folder = _folder(ctx, access, ident)
    tree = folder / "tree"
    with disk_errors(folder):
        files = _arrived(tree, f"shoal dataset push {name}")
        if unpacked and len(files) == 1 and files[0].name.lower().endswith(_ARCHIVES):
            tree, _ = _unpacked(ctx, folder, files[0], ctx.settings.max_import_gb << 30)
        packed = pack_tree(tree, ignore=False)
        made = _commit(ctx, access, request, packed)
    remove_tree(folder)
    return made


def to_source(ctx: Context, access: Access, ident: str, title: str) -> Sent:
    """All parts are here: make code of them that a job can run. `title` is the file's or folder's name on their disk."""
    folder = _folder(ctx, access, ident)
    tree, notes = folder / "tree", list[str]()
    with disk_errors(folder):
        files = _arrived(tree, "shoal training run NAME -- train.py")
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
    hashes = list(chunk_hashes(packed.manifest))
    for _ in range(_TRIES):
        upload(packed, ctx.store)
        chunks.own(ctx, access.workspace_id, hashes)
        made = datasets.commit(ctx, access, dataset.id, packed.manifest)
        if not made.missing:
            return made
    datasets.fail(ctx, access, dataset.id, "The store lost chunks while they were being written.")
    raise Refused("The store lost chunks while they were being written. Try again.")


def _arrived(tree: Path, instead: str) -> list[Path]:
    files = [p for p in tree.rglob("*") if p.is_file()]
    if not files:
        raise InvalidSpec("There is nothing in this upload.")
    if len(files) > MAX_FILES:
        raise InvalidSpec(f"{len(files)} files are too many for a browser.", hint=instead)
    return files


def _unpacked(ctx: Context, folder: Path, archive: Path, max_bytes: int) -> tuple[Path, list[str]]:
    into = folder / "unpacked"
    remove_tree(into)  # of a try before
    return into, unpack(archive, into, limits=Limits(max_bytes=max_bytes, max_ratio=ctx.settings.max_archive_ratio))


def _only_notebook(tree: Path) -> str | None:
    """The notebook that is the only thing a job could run; None if there are scripts."""
    paths = sorted(p.relative_to(tree).as_posix() for p in tree.rglob("*") if p.is_file())
    if any(path.endswith(_SCRIPTS) for path in paths):
        return None
    found = [path for path in paths if path.endswith(".ipynb")]
    if not found:
        raise InvalidSpec("There is no script (.py or .sh) and no notebook in it that a job could run.")
    if len(found) > 1:
        raise InvalidSpec(f"There are {len(found)} notebooks in it, and no script: bring the one to run by itself.")
    return found[0]


def _root(ctx: Context, access: Access) -> Path:
    return ctx.layout.server_dir / "uploads" / access.workspace_id


def _folder(ctx: Context, access: Access, ident: str) -> Path:
    folder = _root(ctx, access) / ident
    if not is_id(ident, "up") or not folder.is_dir():
        raise NotFound("There is no such upload; it may have been given up for being too old.")
    return folder


def _drop_old(folder: Path) -> None:
    for old in folder.iterdir():
        if time.time() - old.stat().st_mtime > _OLD_S:
            remove_tree(old)
