"""Files of the script that are included in the next checkpoint: copied aside at once, moved into it before it is committed."""

# The training thread stages, the writer's thread takes along; both are in the same directory, and both only rename while they
# hold `_NAMES`. A file is copied under a temporary name and then renamed, so that the writer only sees whole ones; a crash
# leaves at most a temporary name, which the writer ignores. What is staged again takes the place of the older copy in two
# renames under the lock: the writer takes along the older one or the newer one, and deleting happens out of its sight.

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterable
from pathlib import Path

_ASIDE = ".extra"
_HALF = ".half-"
_OLD = ".half-old-"
_NAMES = threading.Lock()
os.register_at_fork(after_in_child=lambda: _NAMES._at_fork_reinit())  # type: ignore[attr-defined]


def stage(directory: Path, paths: Iterable[Path]) -> None:
    """Copy files and folders as they are now. Raise OSError if one does not exist."""
    aside = directory / _ASIDE
    for path in paths:
        aside.mkdir(parents=True, exist_ok=True)
        half, whole, old = aside / f"{_HALF}{path.name}", aside / path.name, aside / f"{_OLD}{path.name}"
        _remove(half)
        _remove(old)
        if path.is_dir():
            shutil.copytree(path, half, copy_function=_copy)
        else:
            _copy(str(path), str(half))
        with _NAMES:
            if whole.exists():
                whole.rename(old)
            half.rename(whole)
        _remove(old)


def move_into(directory: Path, partial: Path) -> None:
    """Move staged files into a checkpoint that is being written; its own files are never replaced."""
    aside = directory / _ASIDE
    with _NAMES:
        for path in aside.iterdir() if aside.is_dir() else ():
            if not path.name.startswith(_HALF) and not (partial / path.name).exists():
                path.rename(partial / path.name)


def _copy(source: str, target: str) -> str:
    """Copy a file and sync it to disk."""
    shutil.copyfile(source, target)
    with open(target, "rb") as file:  # noqa: PTH123
        os.fsync(file.fileno())
    return target


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
