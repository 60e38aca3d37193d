"""Restores checkpoints of earlier attempts to where the script wrote them, before its workers start.

Scripts overwrite and append in place, so they get a copy of their own, never a link to the store or to the cache that other
jobs read. If the file system supports it, the copy shares its blocks until one of the two is changed.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.agent.data.inputs import OUTPUT, Chunks, check_relative
from shoal.agent.data.workdir_checkpoints import NAME as WORKDIR
from shoal.agent.node.workdir import WorkDir
from shoal.agent.wire import PutBack

if TYPE_CHECKING:
    from shoal.core.artifacts import FileEntry, Manifest

logger = logging.getLogger(__name__)

_FICLONE = 0x40049409


class Donor:
    """The checkpoint at /input-checkpoint, which is on this machine already and from which equal files are copied."""

    def __init__(self, root: Path, manifest: Manifest):
        self._root = root
        self._files = {file.path: file for file in manifest.files}

    def file(self, wanted: FileEntry) -> Path | None:
        """Return the path of a file with the same name and content, or None."""
        mine = self._files.get(wanted.path)
        return self._root / wanted.path if mine is not None and mine.chunks == wanted.chunks else None


def put_back(
    items: list[PutBack],
    work: WorkDir,
    chunks: Chunks,
    donor: Donor | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[str]:
    """Copy each checkpoint to its place; return one text per checkpoint on what was restored or failed.

    A failure such as a full disk is reported in the text and with `say`, never raised.
    """
    said = []
    for item in items:
        target, place = _target(item, work)
        manifest = chunks.manifest(item.manifest_id)
        aside = [work.tmp / f"put-back-{n}" for n in range(len(manifest.files))]
        paths = [target / check_relative(file.path) for file in manifest.files]
        try:
            for file, path in zip(manifest.files, aside, strict=True):
                _write(file, path, chunks, donor)
            for written, path in zip(aside, paths, strict=True):
                path.parent.mkdir(parents=True, exist_ok=True)
                written.replace(path)  # it may be a file of the source that the job had overwritten
            said.append(f"checkpoint {item.id} was restored to {place}")
        except OSError as error:
            logger.warning("cannot restore %s to %s: %s", item.id, place, error)
            for path in aside:
                path.unlink(missing_ok=True)
            said.append(f"checkpoint {item.id} could not be restored to {place}: {error.strerror or error}")
            say(f"[shoal] {said[-1]}")
    return said


def places(items: list[PutBack], work: WorkDir, chunks: Chunks) -> dict[Path, set[str]]:
    """Return folder → names of the files that `put_back` restores."""
    found: dict[Path, set[str]] = {}
    for item in items:
        target, _ = _target(item, work)
        for file in chunks.manifest(item.manifest_id).files:
            path = target / check_relative(file.path)
            found.setdefault(path.parent, set()).add(path.name)
    return found


def _target(item: PutBack, work: WorkDir) -> tuple[Path, str]:
    """Return the folder on this machine, and its name for people."""
    if item.place == WORKDIR:
        folder = item.name.removeprefix(WORKDIR).strip("/")
        return (
            (work.source / check_relative(folder), f"{folder} in the working directory")
            if folder
            else (work.source, "the working directory")
        )
    output = work.root / "output-checkpoint"
    return (output, OUTPUT) if item.name == "." else (output / check_relative(item.name), f"{OUTPUT}/{item.name}")


def _write(file: FileEntry, path: Path, chunks: Chunks, donor: Donor | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(
        path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o755 if file.executable else 0o644
    )
    known = donor.file(file) if donor is not None else None
    with os.fdopen(fd, "wb") as out:
        if known is None:
            for chunk in file.chunks:
                out.write(chunks.get(chunk.hash))
            return
        with known.open("rb") as source:
            try:
                fcntl.ioctl(out.fileno(), _FICLONE, source.fileno())
            except OSError:  # another file system, or one that cannot share blocks
                shutil.copyfileobj(source, out, 1 << 20)
