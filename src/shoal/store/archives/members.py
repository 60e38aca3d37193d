"""Common view of zip and tar members: safe relative path, size and content. All other kinds of members are refused here."""

from __future__ import annotations

import lzma
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO

from shoal.core.artifacts import check_path
from shoal.core.errors import BadArchive, InvalidSpec
from shoal.store.archives.types import SHOWN, archive_kind

_DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    OSError,
    ValueError,
    NotImplementedError,
)
_DROPPED = frozenset({"__MACOSX", ".DS_Store"})


@dataclass(frozen=True, slots=True)
class Member:
    """File or folder in an archive."""

    path: str
    size: int
    """Size that the archive claims. The bytes read are counted separately."""
    is_folder: bool
    executable: bool
    open: Callable[[], IO[bytes]]


def iterate(archive: Path, shown: str, notes: list[str]) -> Iterator[Member]:
    """Yield the members in order, then links as copies of their files. Files such as .DS_Store are dropped.

    Raises BadArchive with the name of an unacceptable member. Links to anything but a file of the archive are left out, with
    a line in `notes`.
    """
    kind = archive_kind(shown)
    if kind is None:
        raise BadArchive(f"{shown} is not a supported archive: use {SHOWN}.")
    files: dict[str, Member] = {}
    links: dict[str, str] = {}
    try:
        with ExitStack() as stack:
            if kind.lower() == ".zip":
                members = _zip_members(stack.enter_context(zipfile.ZipFile(archive)), shown, links)
            else:
                tar = tarfile.open(archive, "r:*", encoding="utf-8", errors="surrogateescape")  # noqa: SIM115
                members = _tar_members(stack.enter_context(tar), shown, links)
            for member in members:
                if not member.is_folder:
                    files[member.path] = member
                yield member
            for path, target in links.items():
                if found := _behind(path, target, files, links, shown):
                    yield replace(found, path=path)
                else:
                    notes.append(f"{shown}: {path} is a link to {target!r}, which is not a file of the archive")
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise BadArchive(f"{shown} is damaged, cut off, or not what its name says ({error}).") from error


def _zip_members(handle: zipfile.ZipFile, shown: str, links: dict[str, str]) -> Iterator[Member]:
    for info in handle.infolist():
        name = _zip_name(info)
        if info.flag_bits & 0x1:
            raise BadArchive(f"{shown}: {name} is encrypted.")
        path = _safe(name, shown)
        if path is None:
            continue
        mode = info.external_attr >> 16
        kind = stat.S_IFMT(mode)
        if kind == stat.S_IFLNK and info.file_size <= 4096:
            links[path] = handle.read(info).decode("utf-8", "replace")
        elif kind in (0, stat.S_IFREG, stat.S_IFDIR):
            yield Member(path, info.file_size, name.endswith("/"), bool(mode & 0o111), partial(handle.open, info))
        else:
            raise _hostile(f"{shown}: {path} is a device or a pipe; only files and folders are accepted.")


def _tar_members(handle: tarfile.TarFile, shown: str, links: dict[str, str]) -> Iterator[Member]:
    for info in handle:
        path = _safe(_utf8(info.name), shown)
        if path is None:
            continue
        if info.issym():
            links[path] = info.linkname
        elif info.islnk():
            # The target of a hard link is relative to the archive's root, that of a symbolic link to its own folder.
            links[path] = info.linkname if info.linkname.startswith("/") else "../" * path.count("/") + info.linkname
        elif info.isdir() or info.isreg():
            yield Member(path, info.size, info.isdir(), bool(info.mode & 0o111), partial(_tar_open, handle, info))
        else:
            raise _hostile(f"{shown}: {path} is a device or a pipe; only files and folders are accepted.")


def _behind(path: str, target: str, files: dict[str, Member], links: dict[str, str], shown: str) -> Member | None:
    """Return the file that a link leads to, through other links if necessary; None if there is none."""
    for _ in range(16):
        resolved = _resolve(path.rpartition("/")[0], target)
        if resolved is None:
            raise _hostile(f"{shown}: {path} is a link that leaves the archive (to {target!r}).")
        if resolved in files or resolved not in links:
            return files.get(resolved)
        path, target = resolved, links[resolved]
    return None


def _resolve(base: str, link: str) -> str | None:
    if link.startswith("/"):
        return None
    parts = base.split("/") if base else []
    for part in link.split("/"):
        if part == "..":
            if not parts:
                return None
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


def _tar_open(handle: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    source = handle.extractfile(info)
    if source is None:
        raise BadArchive(f"{info.name} cannot be read.")
    return source


def _zip_name(info: zipfile.ZipInfo) -> str:
    # Without the UTF-8 flag zipfile decodes names as cp437, but most tools that omit the flag write UTF-8.
    name = info.orig_filename
    if not info.flag_bits & 0x800:
        try:
            name = name.encode("cp437").decode("utf-8")
        except (UnicodeEncodeError, UnicodeDecodeError):
            pass
    return name.replace("\\", "/")


def _utf8(name: str) -> str:
    try:
        name.encode()
        return name
    except UnicodeEncodeError:
        return name.encode("utf-8", "surrogateescape").decode("cp437")


def _safe(name: str, shown: str) -> str | None:
    """Return a normalized path that is safe to write, None for dropped names; raise BadArchive for `..` and absolute paths."""
    if name.startswith("/") or re.match(r"[A-Za-z]:", name) or ".." in name.split("/"):
        raise _hostile(f"{shown}: {name!r} points outside the archive's folder.")
    parts = [p for p in name.split("/") if p not in ("", ".")]
    if not parts or _DROPPED & set(parts):
        return None
    try:
        return check_path("/".join(parts))
    except InvalidSpec:
        raise _hostile(f"{shown}: {name[:200]!r} is not a usable file name.") from None


def _hostile(message: str) -> BadArchive:
    return BadArchive(message, details={"hostile": True})
