"""A lease's volume as an artifact and back: names of any bytes, modes, times, links. Equal trees make equal manifests, so a manifest's
id is the tree's hash.

The files travel under numbers (files/0, files/1, …); tree.json says what each is and holds all that is not a file.
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

from shoal.agent.link import Link
from shoal.agent.uploads import commit
from shoal.agent.volume import walk
from shoal.core.errors import Corrupt

if TYPE_CHECKING:
    from shoal.store.pack import PackedTree

TREE = "tree.json"
_FILES = "files"

Entry = list[Any]
"""[kind, path, mode, mtime_ns, more]: 'd'irectory, 'f'ile (more: its number), 'h'ard link (the path of the first), sym'l'ink (target)."""


def take(volume: Path, aside: Path, link: Link, check: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Bring the volume to the server, through any outage; returns its answer. Nobody may write to it meanwhile.

    `check` is called between tries and may raise.
    """
    with readable(volume) as modes:
        packed, skipped = pack(volume, aside, modes)
        body = {"manifest": packed.manifest.model_dump(mode="json"), "skipped": skipped[:100]}
        return commit(link, "/snapshots", body, packed, check)


def pack(volume: Path, aside: Path, modes: Mapping[Path, int] = {}) -> tuple[PackedTree, list[str]]:
    """`aside`: where tree.json may be written; it must stay until the chunks are sent. Also what was left out.

    `modes`: of what has another for the moment (see `readable`).
    """
    from shoal.store import pack as store

    entries, skipped = _look(volume, modes)
    tree = aside / TREE
    tree.write_text(json.dumps({"version": 1, "entries": entries}, separators=(",", ":")))
    files = [store.Entry(TREE, tree, False)]
    files += [store.Entry(f"{_FILES}/{e[4]}", volume / e[1], False) for e in entries if e[0] == "f"]
    return store.pack_entries(files), skipped


def put_back(folder: Path, volume: Path, owner: tuple[int, int] | None = None) -> None:
    """Make an empty volume what it was. `folder` holds a snapshot's files; nothing in it is trusted."""
    entries = _entries(folder)
    for kind, path, _, _, more in entries:
        place = volume / path
        if kind == "d" and path != ".":
            place.mkdir(mode=0o700)
        elif kind == "f":
            _copy(folder / _FILES / str(int(more)), place)
        elif kind == "h":
            place.hardlink_to(volume / more)
    # Links last: until then no path can lead through one.
    for _, path, _, _, target in (e for e in entries if e[0] == "l"):
        (volume / path).symlink_to(target)
    # A folder's time changes with what is put into it, so the deepest are first.
    for kind, path, mode, mtime_ns, _ in reversed(entries):
        place = volume / path
        if owner is not None:
            os.chown(place, *owner, follow_symlinks=False)
        if kind != "l":
            place.chmod(mode & 0o7777)
        os.utime(place, ns=(mtime_ns, mtime_ns), follow_symlinks=False)


@contextmanager
def readable(volume: Path) -> Iterator[Mapping[Path, int]]:
    """Who is not root can read its own files only where their modes say so; they get these, which are yielded, back."""
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


def _look(volume: Path, modes: Mapping[Path, int]) -> tuple[list[Entry], list[str]]:
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
    """Checked: every path stays inside and has its folder before it, and hard links lead to files of this very tree."""
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
        raise Corrupt(f"This is no snapshot: {error}.") from error


def _copy(source: Path, dest: Path) -> None:
    with source.open("rb") as reader, dest.open("xb") as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)
