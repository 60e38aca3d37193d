"""Layout of a checkpoint on disk: `step-000000123/` with its files and, written last, shoal.json that lists them.

Standard library only. A directory gets its final name in one rename, after all its contents are on disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.core.durable import replace_folder, sync

FORMAT, SHARDED_FORMAT = 1, 2
"""Versions of shoal.json: whole checkpoints, and those of which each rank has written a part."""
ABOUT = "shoal.json"
_NAME = re.compile(r"step-(\d{9,})")
_PIECE = 8 << 20


def name_of(step: int) -> str:
    return f"step-{step:09d}"


def step_of(path: Path) -> int | None:
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def saved_in(directory: Path) -> list[Path]:
    """Return the checkpoints in a directory, newest first, complete or not."""
    try:
        found = [(step, path) for path in directory.iterdir() if (step := step_of(path)) is not None]
    except OSError:
        return []
    return [path for _, path in sorted(found, reverse=True)]


def best_of(newest_first: list[Path]) -> Path | None:
    """Return the newest checkpoint that is marked as the best so far, or None."""
    for path in newest_first:
        with contextlib.suppress(ValueError):
            if about(path).get("best"):
                return path
    return None


def is_ours(path: Path) -> bool:
    """Check whether Shoal wrote this directory, even if some of its files are missing."""
    return (path / ABOUT).exists() or (step_of(path) is not None and (path / "training.pt").exists())


def about(path: Path) -> dict[str, Any]:
    """Return the contents of shoal.json. Raise ValueError with the file's name if it cannot be read."""
    try:
        said = json.loads((path / ABOUT).read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path / ABOUT} cannot be read ({error})") from error
    if not isinstance(said, dict) or not isinstance(said.get("files"), dict) or not isinstance(said.get("step"), int):
        raise ValueError(f"{path / ABOUT} was not written by Shoal")
    if said.get("format") not in (FORMAT, SHARDED_FORMAT):
        known = f"{FORMAT} and {SHARDED_FORMAT}"
        raise ValueError(f"{path / ABOUT} has format {said.get('format')!r}; this version of Shoal reads {known}")
    return said


def is_sharded(said: Mapping[str, Any]) -> bool:
    """Check whether a shoal.json belongs to a checkpoint of which each rank has written a part."""
    return said.get("format") == SHARDED_FORMAT


def files_of(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return size and hash of all files, including those that may be in the folders of other nodes."""
    return {**said["files"], **said.get("elsewhere", {})}


def verify(path: Path) -> dict[str, Any]:
    """Check size and hash of every file and return the contents of shoal.json. Raise ValueError for the first bad file."""
    said = about(path)
    for name, expected in files_of(said).items():
        verify_file(path / name, expected)
    return said


def verify_file(file: Path, expected: Mapping[str, Any]) -> None:
    """Check size and hash of one file. Raise ValueError if they differ."""
    try:
        size = file.stat().st_size
        if size != expected["size"]:
            raise ValueError(f"{file} has {size} bytes instead of {expected['size']}")
        if hash_of(file) != expected["blake2b"]:
            raise ValueError(f"{file} is damaged: its contents do not match its hash")
    except OSError as error:
        raise ValueError(f"{file} cannot be read ({error.strerror})") from error


def hash_of(path: Path) -> str:
    digest = hashlib.blake2b()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def write_about(directory: Path, said: Mapping[str, Any], *, sharded: bool = False) -> None:
    with (directory / ABOUT).open("w") as file:
        json.dump({"format": SHARDED_FORMAT if sharded else FORMAT, **said}, file, indent=1, default=str)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def commit(partial: Path, final: Path) -> None:
    """Rename a complete directory to its final name and sync it to disk.

    A checkpoint of the same step is replaced: a crash at any moment leaves the old one or the new one.
    """
    sync(partial)
    replace_folder(partial, final)


def discard(path: Path) -> None:
    """Remove a checkpoint: rename it first, so that nobody sees a half-removed one."""
    trash = path.with_name(f".trash-{path.name}-{os.getpid()}")
    with contextlib.suppress(OSError):
        path.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)


def prune(directory: Path, keep: int) -> None:
    """Remove all checkpoints but the newest `keep` and the newest best one, and the remains of killed writers."""
    whole = [path for path in saved_in(directory) if (path / ABOUT).exists()]
    best = best_of(whole)
    for path in whole[max(1, keep) :]:
        if path != best:
            discard(path)
    with contextlib.suppress(OSError):
        for path in directory.iterdir():
            if path.name.startswith((".tmp-step-", ".trash-step-")):
                shutil.rmtree(path, ignore_errors=True)
