"""What of a folder belongs to it: .gitignore and .shoalignore at every level, and what is never wanted.

`scan` only lists, never opens a file, and gives up early on a folder that is far too large to be meant.
"""

from __future__ import annotations

import os
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pathspec import GitIgnoreSpec

from shoal.core.errors import InvalidSpec, NotFound, SourceTooLarge
from shoal.store.stamp import Stamp

ALWAYS_FOLDERS = frozenset({".git", "__pycache__", ".venv", "venv", "node_modules", ".ipynb_checkpoints"})
OUTPUT_FOLDERS = frozenset({"shoal-runs", "wandb", "mlruns", "lightning_logs"})
"""Folders that runs and trackers write beside the code. Left out, unless it is a Python package or an ignore file says `!NAME/`."""
ENVIRONMENT_MARKS = frozenset({"pyvenv.cfg", "conda-meta"})
"""A folder that holds one of these is a virtual environment, whatever its name."""
LARGE_FILE = 20_000_000
"""A file of code above this is probably data: it is named before it is sent."""
ALWAYS_FILES = frozenset({".DS_Store"})
ALWAYS_SUFFIXES = (".pyc",)
IGNORE_FILES = (".gitignore", ".shoalignore")

_LOOK_ON_S = 2.0
"""How long to look on after the limit is passed, so that the biggest offenders are really among those named."""


class ScannedFile(NamedTuple):
    path: str
    """Relative, '/'-separated."""
    size: int
    executable: bool
    stamp: Stamp


@dataclass(slots=True)
class Scan:
    root: Path
    files: list[ScannedFile] = field(default_factory=list)
    """Sorted by path."""
    size: int = 0
    skipped: list[str] = field(default_factory=list)
    """One line per thing that cannot travel: sockets, pipes, devices, links to nowhere."""

    def biggest(self, count: int = 5) -> list[tuple[str, int]]:
        """The largest files and folders, largest first; a folder is named as deep as most of its bytes are."""
        return _biggest(self.files, count)


def scan(
    root: Path,
    *,
    ignore: bool = True,
    max_bytes: int | None = None,
    max_files: int | None = None,
    follow_out: bool = False,
) -> Scan:
    """List a folder's files, sizes and modes. `ignore=False` takes everything (datasets, checkpoints).

    Links to files and folders of the tree are followed; a link that leaves the tree is InvalidSpec unless `follow_out`.
    Beyond a limit: SourceTooLarge with the five biggest offenders.
    """
    root = Path(root)
    if not root.is_dir():
        raise NotFound(f"There is no folder {root}.") if not root.exists() else InvalidSpec(f"{root} is not a folder.")
    found = Scan(root)
    deadline: float | None = None
    for file in _walk(root, found.skipped, ignore=ignore, follow_out=follow_out):
        found.files.append(file)
        found.size += file.size
        over = (max_bytes is not None and found.size > max_bytes) or (
            max_files is not None and len(found.files) > max_files
        )
        if over and deadline is None:
            deadline = time.monotonic() + _LOOK_ON_S
        if deadline is not None and time.monotonic() > deadline:
            break
    if deadline is not None:
        raise _too_large(found, max_bytes, max_files)
    found.files.sort(key=lambda f: f.path)
    return found


def large_files(sizes: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """The (path, size) of files over `LARGE_FILE`, largest first."""
    return sorted(((path, size) for path, size in sizes if size > LARGE_FILE), key=lambda f: (-f[1], f[0]))


def human_size(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


class _Rules:
    """The ignore files from the root down to one folder; the deepest rule that matches decides, as git does."""

    def __init__(self, specs: tuple[tuple[str, GitIgnoreSpec], ...] = ()):
        self._specs = specs

    def below(self, folder: str, prefix: str, names: set[str]) -> _Rules:
        lines: list[str] = []
        for name in IGNORE_FILES:
            if name in names:
                lines += Path(folder, name).read_text(encoding="utf-8", errors="replace").splitlines()
        if not lines:
            return self
        return _Rules((*self._specs, (prefix, GitIgnoreSpec.from_lines(lines))))

    def ignored(self, path: str, *, folder: bool) -> bool:
        return bool(self.decision(path, folder=folder))

    def decision(self, path: str, *, folder: bool) -> bool | None:
        """True to leave it out, False to take it, None where no rule is about it."""
        for prefix, spec in reversed(self._specs):
            decision = spec.check_file(path[len(prefix) :] + ("/" if folder else "")).include
            if decision is not None:
                return decision
        return None


@dataclass(frozen=True, slots=True)
class _Folder:
    disk: str
    prefix: str
    """Its path in the tree, with a slash at the end."""
    real: str
    above: frozenset[str]
    """The real folders it lies in, itself included: a link back to one of them is a circle."""
    rules: _Rules


def _walk(root: Path, skipped: list[str], *, ignore: bool, follow_out: bool) -> Iterator[ScannedFile]:
    top = os.path.realpath(root)
    pending = [_Folder(str(root), "", top, frozenset({top}), _Rules())]
    while pending:
        here = pending.pop()
        entries = _entries(here, root)
        if ignore and here.prefix and any(entry.name in ENVIRONMENT_MARKS for entry in entries):
            continue
        rules = here.rules.below(here.disk, here.prefix, {e.name for e in entries}) if ignore else here.rules
        for entry in entries:
            path, real = here.prefix + entry.name, f"{here.real}/{entry.name}"
            info = entry.stat(follow_symlinks=False)
            if stat.S_ISLNK(info.st_mode):
                # Looked at before it is followed: an ignored link may point anywhere.
                if ignore and (_never(entry.name) or any(rules.ignored(path, folder=f) for f in (False, True))):
                    continue
                target = _follow(entry.path, path, top, follow_out)
                if target is None or target in here.above:
                    skipped.append(f"{path}: a link {'to nowhere' if target is None else 'in a circle'}")
                    continue
                real, info = target, Path(target).stat()
            is_folder = stat.S_ISDIR(info.st_mode)
            if ignore and (_never(entry.name, folder=is_folder) or rules.ignored(path, folder=is_folder)):
                continue
            if ignore and is_folder and _is_output(entry, rules.decision(path, folder=True)):
                continue
            if is_folder:
                pending.append(_Folder(entry.path, path + "/", real, here.above | {real}, rules))
            elif stat.S_ISREG(info.st_mode):
                yield ScannedFile(_text(path), info.st_size, bool(info.st_mode & 0o111), Stamp.of(info))
            else:
                skipped.append(f"{path}: not a regular file")


def _entries(folder: _Folder, root: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder.disk) as listing:
            return list(listing)
    except PermissionError as error:
        raise InvalidSpec(f"The folder {folder.prefix or root} may not be read.") from error
    except FileNotFoundError:
        return []  # removed since its parent was listed


def _follow(link: str, path: str, real_root: str, follow_out: bool) -> str | None:
    real = os.path.realpath(link)
    if not Path(real).exists():
        return None
    if not follow_out and real != real_root and not real.startswith(real_root.rstrip("/") + "/"):
        raise InvalidSpec(f"{path} is a link that leaves the folder (to {real}). Replace it by a copy, or ignore it.")
    return real


def _never(name: str, *, folder: bool | None = None) -> bool:
    """None: could be either."""
    return (folder is not False and name in ALWAYS_FOLDERS) or (
        folder is not True and (name in ALWAYS_FILES or name.endswith(ALWAYS_SUFFIXES))
    )


def _is_output(entry: os.DirEntry[str], decision: bool | None) -> bool:
    """`decision` is what the ignore files say of this folder."""
    return entry.name in OUTPUT_FOLDERS and decision is None and not Path(entry.path, "__init__.py").is_file()


def _text(path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InvalidSpec(f"The file name {os.fsencode(path)!r} is not valid UTF-8. Rename it, or ignore it.") from None
    return path


def _too_large(found: Scan, max_bytes: int | None, max_files: int | None) -> SourceTooLarge:
    offenders = found.biggest()
    what = (
        f"more than {human_size(max_bytes)}"
        if max_bytes is not None and found.size > max_bytes
        else f"more than {max_files:,} files"
    )
    listed = ", ".join(f"{path} ({human_size(size)})" for path, size in offenders)
    return SourceTooLarge(
        f"{found.root} holds {what}. Biggest: {listed}.",
        hint="List what the code does not need in .shoalignore, and push data with `shoal dataset push`.",
        details={"biggest": [{"path": path, "size": size} for path, size in offenders], "seen": found.size},
    )


def _biggest(files: list[ScannedFile], count: int) -> list[tuple[str, int]]:
    sizes: Counter[str] = Counter()
    children: dict[str, set[str]] = {}
    for file in files:
        parts = file.path.split("/")
        above = ""
        for depth in range(1, min(len(parts), 6) + 1):
            here = "/".join(parts[:depth]) + ("/" if depth < len(parts) else "")
            sizes[here] += file.size
            children.setdefault(above, set()).add(here)
            above = here
    out = []
    for top in sorted(children.get("", ()), key=lambda p: (-sizes[p], p))[:count]:
        here = top
        while below := children.get(here):
            largest = max(below, key=lambda p: sizes[p])
            if sizes[largest] < 0.8 * sizes[here]:
                break
            here = largest
        out.append((here, sizes[here]))
    return out
