"""Files of the script's own that travel inside the next checkpoint: copied aside at once, moved in before it is committed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

_ASIDE = ".extra"
_HALF = ".half-"


def stage(directory: Path, paths: Iterable[Path]) -> None:
    """Copy files and folders as they are now; OSError if one is not there."""
    aside = directory / _ASIDE
    for path in paths:
        aside.mkdir(parents=True, exist_ok=True)
        half, whole = aside / f"{_HALF}{path.name}", aside / path.name
        _remove(half)
        if path.is_dir():
            shutil.copytree(path, half, copy_function=_copy)
        else:
            _copy(str(path), str(half))
        _remove(whole)
        half.rename(whole)


def take_along(directory: Path, partial: Path) -> None:
    """Move what is staged into a checkpoint that is being written; its own files are never replaced."""
    aside = directory / _ASIDE
    for path in aside.iterdir() if aside.is_dir() else ():
        if not path.name.startswith(_HALF) and not (partial / path.name).exists():
            path.rename(partial / path.name)


def _copy(source: str, target: str) -> str:
    """Durable, since the checkpoint it goes into is."""
    shutil.copyfile(source, target)
    with open(target, "rb") as file:  # noqa: PTH123
        os.fsync(file.fileno())
    return target


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
