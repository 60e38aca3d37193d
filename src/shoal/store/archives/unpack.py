"""Unpacking of untrusted archives: .zip .tar .tar.gz .tgz .tar.bz2 .tar.xz. Errors name the member that is hostile.

Only plain files and folders are written, into a private folder that becomes `dest` in one step.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from shoal.core import system
from shoal.core.errors import BadArchive, NameTaken, ShoalError
from shoal.store.archives.members import Member, iterate
from shoal.store.archives.types import archive_kind
from shoal.store.files import disk_errors
from shoal.store.materialize import remove_tree

MAX_DEPTH = 5
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of an archive, with the archives nested in it."""

    max_bytes: int = 8 << 30
    """Maximum unpacked bytes in total."""
    max_entries: int = 100_000
    """Maximum files and folders in total."""
    max_ratio: int = 100
    """Maximum ratio of unpacked to packed bytes, checked above `ratio_from` unpacked bytes; protects against zip bombs."""
    ratio_from: int = 10 << 20


def unpack(archive: Path, dest: Path, *, limits: Limits | None = None) -> list[str]:
    """Unpack an archive to a new folder `dest`.

    Returns one line, with the reason, per nested archive that stays packed and per link that is left out. Nested archives are
    unpacked next to themselves to depth 5, `__MACOSX` is dropped, and a single wrapping folder is removed. Raises BadArchive
    if anything is unsafe or damaged; `dest` does not exist then.
    """
    archive, dest = Path(archive), Path(dest)
    if not archive.is_file():
        raise BadArchive(f"There is no file {archive}.")
    if dest.is_symlink() or (dest.exists() and (not dest.is_dir() or any(dest.iterdir()))):
        raise NameTaken(f"{dest} exists already.")
    with disk_errors(dest):
        dest.parent.mkdir(parents=True, exist_ok=True)
        aside = dest.parent / f".{dest.name[:100]}.{secrets.token_hex(6)}.tmp"
        aside.mkdir(mode=0o700)
        try:
            job = _Unpacking(limits or Limits(), archive.stat().st_size)
            job.unpack(archive, aside, archive.name, depth=1)
            top = _without_wrapper(aside)
            top.chmod(0o755)
            top.rename(dest)
        finally:
            remove_tree(aside)
    return job.notes


@dataclass(slots=True)
class _Unpacking:
    limits: Limits
    packed_bytes: int
    entries: int = 0
    size: int = 0
    notes: list[str] = field(default_factory=list)

    def unpack(self, archive: Path, into: Path, shown: str, *, depth: int) -> None:
        nested: list[tuple[str, Path]] = []
        for member in iterate(archive, shown, self.notes):
            self._count(member, shown)
            target = into / member.path
            if member.is_folder:
                self._folder(target, member, shown)
                continue
            self._folder(target.parent, member, shown)
            self._file(target, member, shown)
            if archive_kind(member.path):
                nested.append((f"{shown}/{member.path}", target))
        for name, path in nested:
            self._nested(path, name, into, depth)

    def _nested(self, path: Path, name: str, into: Path, depth: int) -> None:
        if depth >= MAX_DEPTH:
            self.notes.append(f"{name}: nested deeper than {MAX_DEPTH} archives")
            return
        # An archive that contains only another archive is replaced by its content.
        alone = path.parent == into and len(list(into.iterdir())) == 1
        folder = path.with_name(f".{secrets.token_hex(6)}")
        folder.mkdir(0o700)
        try:
            before = (self.entries, self.size)
            self.unpack(path, folder, name, depth=depth + 1)
        except BadArchive as error:
            if alone or error.details.get("hostile"):
                raise
            remove_tree(folder)
            self.entries, self.size = before
            self.notes.append(f"{name}: {error.message}")
            return
        if alone:
            path.unlink()
            for child in list(folder.iterdir()):
                child.rename(into / child.name)
            folder.rmdir()
            return
        target = path.with_name(_stem(path.name))
        if target.exists():
            remove_tree(folder)
            self.notes.append(f"{name}: {target.name} is already there")
            return
        _without_wrapper(folder).rename(target)
        remove_tree(folder)
        target.chmod(0o755)

    def _count(self, member: Member, shown: str) -> None:
        self.entries += 1
        if self.entries > self.limits.max_entries:
            raise _hostile(f"{shown} holds more than {self.limits.max_entries:,} entries.")
        self._check_size(self.size + member.size, member, shown)

    def _check_size(self, size: int, member: Member, shown: str) -> None:
        if size > self.limits.max_bytes:
            raise _hostile(f"{shown}: {member.path} exceeds the limit of {self.limits.max_bytes >> 20:,} MiB unpacked.")
        if size > self.limits.ratio_from and size > self.limits.max_ratio * self.packed_bytes:
            raise _hostile(
                f"{shown}: {member.path} unpacks to more than {self.limits.max_ratio} times the archive's size."
            )

    def _folder(self, path: Path, member: Member, shown: str) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise _hostile(f"{shown}: {member.path} is both a file and a folder.") from None

    def _file(self, target: Path, member: Member, shown: str) -> None:
        if target.is_dir():
            raise _hostile(f"{shown}: {member.path} is both a file and a folder.")
        # Of several members with one name the last wins, as in unzip and tar.
        with suppress(FileNotFoundError):
            self.size -= target.lstat().st_size
            target.unlink()
        mode = 0o755 if member.executable else 0o644
        with _reading(member, shown):
            source = member.open()
        with source:
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | system.NOFOLLOW | system.CLOEXEC, mode)
            with os.fdopen(fd, "wb") as sink:
                self._copy(source, sink.write, member, shown)

    def _copy(self, source: IO[bytes], write: Callable[[bytes], int], member: Member, shown: str) -> None:
        while True:
            with _reading(member, shown):
                block = source.read(_BLOCK)
            if not block:
                return
            self.size += len(block)
            self._check_size(self.size, member, shown)
            write(block)


@contextmanager
def _reading(member: Member, shown: str) -> Iterator[None]:
    try:
        yield
    except ShoalError:
        raise
    except Exception as error:  # zlib, lzma, zipfile and tarfile have no common class for "damaged"
        raise BadArchive(f"{shown}: {member.path} is damaged or cut off ({error}).") from error


def _hostile(message: str) -> BadArchive:
    return BadArchive(message, details={"hostile": True})


def _without_wrapper(folder: Path) -> Path:
    """Return the innermost folder of a chain of folders that each contain only one folder."""
    while True:
        children = list(folder.iterdir())
        if len(children) != 1 or not children[0].is_dir():
            return folder
        folder = children[0]


def _stem(name: str) -> str:
    kind = archive_kind(name)
    stem = name[: -len(kind)] if kind else name
    return stem if stem.strip(".") else f"{name}.unpacked"
