"""Packs a lease's volume into an artifact and restores it: names of any bytes, modes, times and links.

Equal trees make equal manifests, so the id of a manifest is the hash of the tree. The artifact has the files under numbers
(files/0, files/1, …); tree.json describes each of them and everything that is not a file.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.agent.data.uploads import commit
from shoal.agent.lease.volume import walk
from shoal.agent.link import Link
from shoal.core.errors import Corrupt

if TYPE_CHECKING:
    from shoal.store.pack import PackedTree

TREE = "tree.json"
_FILES = "files"

Entry = list[Any]
"""List [kind, path, mode, mtime_ns, more].

Kinds: d directory, f file (more: its number), h hard link (more: path of the first), l symbolic link (more: target).
"""


def upload(volume: Path, aside: Path, link: Link, check: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Upload the volume as a snapshot, continuing after outages; return the server's reply.

    No process may write to the volume meanwhile. `check` is called between tries and may raise an exception to stop.
    """
    with readable(volume) as modes:
        packed, skipped = pack(volume, aside, modes)
        body = {"manifest": packed.manifest.model_dump(mode="json"), "skipped": skipped[:100]}
        return commit(link, "/snapshots", body, packed, check)


def pack(volume: Path, aside: Path, modes: Mapping[Path, int] = {}) -> tuple[PackedTree, list[str]]:
    """Pack a volume; return the packed tree and a list of what was left out.

    `aside` is a folder for tree.json, which must exist until the chunks are sent. `modes` has the real modes of paths that
    `readable` has changed.
    """
    from shoal.store import pack as store

    entries, skipped = _scan(volume, modes)
    tree = aside / TREE
    tree.write_text(json.dumps({"version": 1, "entries": entries}, separators=(",", ":")))
    files = [store.Entry(TREE, tree, False)]
    files += [store.Entry(f"{_FILES}/{e[4]}", volume / e[1], False) for e in entries if e[0] == "f"]
    return store.pack_entries(files), skipped


def put_back(folder: Path, volume: Path, owner: tuple[int, int] | None = None) -> None:
    """Restore a snapshot into an empty volume. `folder` holds the snapshot's files, which are not trusted."""
    entries = _entries(folder)
    for kind, path, _, _, more in entries:
        place = volume / path
        if kind == "d" and path != ".":
            place.mkdir(mode=0o700)
        elif kind == "f":
            _copy(folder / _FILES / str(int(more)), place)
        elif kind == "h":
            place.hardlink_to(volume / more)
    # Symbolic links last, so that no path can lead through one before.
    for _, path, _, _, target in (e for e in entries if e[0] == "l"):
        (volume / path).symlink_to(target)
    # Creating entries changes a folder's time, so times are set from the deepest path upwards.
    for kind, path, mode, mtime_ns, _ in reversed(entries):
        place = volume / path
        if owner is not None:
            os.chown(place, *owner, follow_symlinks=False)
        if kind != "l":
            place.chmod(mode & 0o7777)
        os.utime(place, ns=(mtime_ns, mtime_ns), follow_symlinks=False)


@contextmanager
def readable(volume: Path) -> Iterator[Mapping[Path, int]]:
    """Make all files readable for the duration of the block and yield the original modes, which are restored afterwards.

    As root this is not needed; other users can read even their own files only if the modes allow it.
    """
    changed: dict[Path, int] = {}
    try:
        for path in () if os.geteuid() == 0 else walk(volume):
            mode = path.lstat().st_mode
            needed = 0o700 if stat.S_ISDIR(mode) else 0o400
            if not stat.S_ISLNK(mode) and mode & needed != needed:
                path.chmod(stat.S_IMODE(mode) | needed)
                changed[path] = stat.S_IMODE(mode)
        yield changed
    finally:
        for path, mode in reversed(changed.items()):
            path.chmod(mode)


def _scan(volume: Path, modes: Mapping[Path, int]) -> tuple[list[Entry], list[str]]:
    entries: list[Entry] = []
    skipped: list[str] = []
    first: dict[tuple[int, int], str] = {}
    files = 0
    for path in walk(volume):
        status, name = path.lstat(), os.path.relpath(path, volume)
        common = [name, modes.get(path, stat.S_IMODE(status.st_mode)), status.st_mtime_ns]
        if stat.S_ISDIR(status.st_mode):
            entries.append(["d", *common, None])
        elif stat.S_ISLNK(status.st_mode):
            entries.append(["l", *common, os.readlink(path)])  # noqa: PTH115
        elif not stat.S_ISREG(status.st_mode):
            skipped.append(f"{name} is neither file, folder nor link")
        elif (known := first.setdefault((status.st_dev, status.st_ino), name)) != name:
            entries.append(["h", *common, known])
        else:
            entries.append(["f", *common, files])
            files += 1
    return entries, skipped


def _entries(folder: Path) -> list[Entry]:
    """Return the validated entries: paths are inside and come after their folder, hard links lead to files of this tree."""
    try:
        entries: list[Entry] = json.loads((folder / TREE).read_text())["entries"]
        folders, files = {"."}, set()
        for kind, path, mode, mtime_ns, more in entries:
            parent, _, name = path.rpartition("/")
            inside = name not in ("", ".", "..") and not path.startswith("/") and "\0" not in path
            inside = (inside and (parent or ".") in folders) or (kind, path) == ("d", ".")
            known = kind in ("d", "f", "l") or (kind == "h" and more in files)
            if not (inside and known and isinstance(mode, int) and isinstance(mtime_ns, int)):
                raise ValueError(path)
            if kind == "d":
                folders.add(path)
            elif kind == "f":
                files.add(path)
        return entries
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"The files are not a valid snapshot: {error}.") from error


def _copy(source: Path, dest: Path) -> None:
    with source.open("rb") as reader, dest.open("xb") as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)
