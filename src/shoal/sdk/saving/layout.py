"""What a checkpoint looks like on disk: `step-000000123/` with its files and, written last, shoal.json that lists them.

Standard library only. A directory appears under its name in one rename, after all of it has reached the disk.
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

from shoal.core.durable import sync

FORMAT = 1
ABOUT = "shoal.json"
_NAME = re.compile(r"step-(\d{9,})")
_PIECE = 8 << 20


def name_of(step: int) -> str:
    return f"step-{step:09d}"


def step_of(path: Path) -> int | None:
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def saved_in(directory: Path) -> list[Path]:
    """Checkpoints of ours in a directory, newest first, whole or not."""
    try:
        found = [(step, path) for path in directory.iterdir() if (step := step_of(path)) is not None]
    except OSError:
        return []
    return [path for _, path in sorted(found, reverse=True)]


def best_of(newest_first: list[Path]) -> Path | None:
    """The newest that was marked as the best so far."""
    for path in newest_first:
        with contextlib.suppress(ValueError):
            if about(path).get("best"):
                return path
    return None


def is_ours(path: Path) -> bool:
    """Whether we wrote it, even if half of it is gone since."""
    return (path / ABOUT).exists() or (step_of(path) is not None and (path / "training.pt").exists())


def about(path: Path) -> dict[str, Any]:
    """What shoal.json says; ValueError with the file's name if it cannot be read."""
    try:
        said = json.loads((path / ABOUT).read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path / ABOUT} cannot be read ({error})") from error
    if not isinstance(said, dict) or not isinstance(said.get("files"), dict) or not isinstance(said.get("step"), int):
        raise ValueError(f"{path / ABOUT} is not what Shoal writes")
    if said.get("format") != FORMAT:
        raise ValueError(f"{path / ABOUT} has format {said.get('format')!r}; this version of Shoal reads {FORMAT}")
    return said


def verify(path: Path) -> dict[str, Any]:
    """What shoal.json says, after every file was found to be as it says; ValueError naming the first that is not."""
    said = about(path)
    for name, expected in said["files"].items():
        file = path / name
        try:
            size = file.stat().st_size
            if size != expected["size"]:
                raise ValueError(f"{file} has {size} bytes instead of {expected['size']}")
            if hash_of(file) != expected["blake2b"]:
                raise ValueError(f"{file} is damaged: its contents do not match its hash")
        except OSError as error:
            raise ValueError(f"{file} cannot be read ({error.strerror})") from error
    return said


def hash_of(path: Path) -> str:
    digest = hashlib.blake2b()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def write_about(directory: Path, said: Mapping[str, Any]) -> None:
    with (directory / ABOUT).open("w") as file:
        json.dump({"format": FORMAT, **said}, file, indent=1, default=str)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def commit(partial: Path, final: Path) -> None:
    """Make it visible, and durable, in one step."""
    sync(partial)
    if final.exists():
        discard(final)
    partial.rename(final)
    sync(final.parent)


def discard(path: Path) -> None:
    """Out of sight at once, then away: nobody sees half of it."""
    trash = path.with_name(f".trash-{path.name}-{os.getpid()}")
    with contextlib.suppress(OSError):
        path.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)


def prune(directory: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints and the newest that was the best, and what killed writers have left."""
    whole = [path for path in saved_in(directory) if (path / ABOUT).exists()]
    best = best_of(whole)
    for path in whole[max(1, keep) :]:
        if path != best:
            discard(path)
    with contextlib.suppress(OSError):
        for path in directory.iterdir():
            if path.name.startswith((".tmp-step-", ".trash-step-")):
                shutil.rmtree(path, ignore_errors=True)
