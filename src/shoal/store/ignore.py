"""Listing of a folder's files, without those excluded by .gitignore and .shoalignore at any level or by built-in rules.

`scan` only lists: it opens no files except ignore files, and stops early in a folder that is far above its limits.
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
from shoal.store.file_identity import FileIdentity

ALWAYS_FOLDERS = frozenset({".git", "__pycache__", ".venv", "venv", "node_modules", ".ipynb_checkpoints"})
OUTPUT_FOLDERS = frozenset({"shoal-runs", "wandb", "mlruns", "lightning_logs"})
"""Folders that runs and trackers write beside the code. Excluded, unless one is a Python package or included by `!NAME/`."""
ENVIRONMENT_MARKS = frozenset({"pyvenv.cfg", "conda-meta"})
"""Names that mark their folder as a virtual environment, whatever its own name."""
LARGE_FILE = 20_000_000
"""Bytes above which a source file is probably data; such files are listed before they are sent."""
ALWAYS_FILES = frozenset({".DS_Store"})
ALWAYS_SUFFIXES = (".pyc",)
IGNORE_FILES = (".gitignore", ".shoalignore")

_LOOK_ON_S = 2.0
"""Seconds to keep listing after a limit is exceeded, so that the error can name the largest files."""


class ScannedFile(NamedTuple):
    """A file found by `scan`."""

    path: str
    """Path relative to the root, '/'-separated."""
    size: int
    executable: bool
    stamp: FileIdentity


@dataclass(slots=True)
class Scan:
    """Result of `scan`."""

    root: Path
    files: list[ScannedFile] = field(default_factory=list)
    """Sorted by path."""
    size: int = 0
    skipped: list[str] = field(default_factory=list)
    """One line per entry that cannot be stored: sockets, pipes, devices, broken links."""

    def biggest(self, count: int = 5) -> list[tuple[str, int]]:
        """Return the largest files and folders with their sizes; of nested folders, the deepest with most of the bytes."""
        return _biggest(self.files, count)


def scan(
    root: Path,
    *,
    ignore: bool = True,
    max_bytes: int | None = None,
    max_files: int | None = None,
    follow_out: bool = False,
) -> Scan:
    """List a folder's files, sizes and modes.

    Args:
        root: The folder.
        ignore: Apply ignore files and built-in exclusions; False lists everything (datasets, checkpoints).
        max_bytes, max_files: Limits; above them SourceTooLarge names the five largest entries.
        follow_out: Follow links that leave the folder; otherwise they raise InvalidSpec. Links inside are always followed.
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
    """Return (path, size) of the files above `LARGE_FILE`, largest first."""
    return sorted(((path, size) for path, size in sizes if size > LARGE_FILE), key=lambda f: (-f[1], f[0]))


def human_size(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


class _Rules:
    """Ignore rules from the root down to one folder. The deepest matching rule decides, as in git."""

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
        """Return True to exclude the path, False to include it, None if no rule matches."""
        for prefix, spec in reversed(self._specs):
            decision = spec.check_file(path[len(prefix) :] + ("/" if folder else "")).include
            if decision is not None:
                return decision
        return None


@dataclass(frozen=True, slots=True)
class _Folder:
    disk: str
    prefix: str
    """Path in the tree, with a slash at the end."""
    real: str
    above: frozenset[str]
    """Real paths of this folder and its parents. A link to one of them is a loop."""
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
                # Ignore rules come before following: an ignored link may point anywhere.
                if ignore and (_never(entry.name) or any(rules.ignored(path, folder=f) for f in (False, True))):
                    continue
                target = _follow(entry.path, path, top, follow_out)
                if target is None or target in here.above:
                    skipped.append(f"{path}: {'a broken link' if target is None else 'a link loop'}")
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
                yield ScannedFile(_text(path), info.st_size, bool(info.st_mode & 0o111), FileIdentity.of(info))
            else:
                skipped.append(f"{path}: not a regular file")


def _entries(folder: _Folder, root: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder.disk) as listing:
            return list(listing)
    except PermissionError as error:
        raise InvalidSpec(f"The folder {folder.prefix or root} cannot be read: permission denied.") from error
    except FileNotFoundError:
        return []  # deleted since its parent was listed


def _follow(link: str, path: str, real_root: str, follow_out: bool) -> str | None:
    real = os.path.realpath(link)
    if not Path(real).exists():
        return None
    if not follow_out and real != real_root and not real.startswith(real_root.rstrip("/") + "/"):
        raise InvalidSpec(f"{path} is a link that leaves the folder (to {real}). Replace it by a copy, or ignore it.")
    return real


def _never(name: str, *, folder: bool | None = None) -> bool:
    """Check whether a name is always excluded. `folder` None means that it may be a file or a folder."""
    return (folder is not False and name in ALWAYS_FOLDERS) or (
        folder is not True and (name in ALWAYS_FILES or name.endswith(ALWAYS_SUFFIXES))
    )


def _is_output(entry: os.DirEntry[str], decision: bool | None) -> bool:
    """Check whether a folder is an excluded output folder. `decision` is that of the ignore files."""
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
