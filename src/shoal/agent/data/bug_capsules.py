"""Capsules of failed steps in a job's output directory: finds them and describes them for the server.

They are uploaded like media and not as checkpoints: a failed job must never resume from one.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

from shoal.core.errors import ShoalError

FOLDER = "bug"
"""Name of the folder of capsules in the output directory."""
ABOUT = "capsule.json"
_NAME = re.compile(r"step-(\d{1,18})-rank-(\d{1,9})")
_ENTRY = re.compile(r"(\.(tmp|trash)-)*step-\d{1,18}-rank-\d{1,9}(-\d+)?")


def holds_capsules(folder: Path) -> bool:
    """Return whether this folder of an output directory holds capsules and is not a checkpoint."""
    if folder.name != FOLDER:
        return False
    try:
        return all(_ENTRY.fullmatch(name) for name in os.listdir(folder))  # noqa: PTH208
    except OSError:
        return False


def capsules_in(folder: Path) -> list[Path]:
    """Return the complete capsules in a folder, sorted by step and rank."""
    try:
        found = [p for p in folder.iterdir() if _NAME.fullmatch(p.name) and (p / ABOUT).is_file()]
    except OSError:
        return []
    return sorted(found, key=step_and_rank)


def step_and_rank(capsule: Path) -> tuple[int, int]:
    match = _NAME.fullmatch(capsule.name)
    return (int(match[1]), int(match[2])) if match else (-1, -1)


def capsule_files(output: Path, record: dict[str, Any]) -> dict[str, Path]:
    """Return name → path of the regular files in the capsule that a record names.

    Links are refused: the agent may be able to read files that the job must not.
    """
    name = str(record.get("name"))
    if not _NAME.fullmatch(name):
        raise ShoalError(f"{name[:200]!r} is not the name of a capsule")
    folder = output / FOLDER / name
    for part in (folder.parent, folder):
        if not stat.S_ISDIR(os.lstat(part).st_mode):
            raise ShoalError(f"{part.name} is not a folder")
    with os.scandir(folder) as entries:
        found = sorted(e.name for e in entries if e.is_file(follow_symlinks=False))
    return {file: folder / file for file in found}


def wire_body(rank: int, line: int, record: dict[str, Any], manifest: dict[str, Any] | None) -> dict[str, Any]:
    """Return the fields of core.bugs.BugCommit for a record."""
    seen = record.get("seen")
    return {
        "rank": rank,
        "n": line,
        "t": record.get("t"),
        "step": record.get("i"),
        "seen": seen if isinstance(seen, int) else None,
        "name": str(record.get("name")),
        "error": str(record.get("error"))[:200],
        "message": str(record.get("text") or "")[:2000],
        "where": str(record.get("where") or "")[:500],
        "manifest": manifest,
    }
