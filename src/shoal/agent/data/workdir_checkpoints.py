"""Finds checkpoints that a script writes to its working directory instead of the output directory.

Each top-level folder that contains weight files is one checkpoint; weight files directly in the working directory are another,
together with the small files next to them. Only files that the job wrote count; unchanged files of its source are left out.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from shoal.agent.data.completeness import is_half_made_name

NAME = "workdir"
"""Copy of shoal.core.checkpoints.WORKDIR; importing that module would import pydantic."""
_STATE = re.compile(
    r".*\.(pt|pth|ckpt|safetensors|distcp|pth\.tar|pt\.tar)|(.*_)?(model|optimizer)[\w.-]*\.bin", re.IGNORECASE
)
_NOT_OURS = frozenset(
    "data dataset datasets raw cache venv env wandb mlruns shoal-runs node_modules site-packages __pycache__".split()
)
"""Folders whose tensor files are data, packages or records of other tools, not checkpoints."""
_NO_STATE = re.compile(
    r"(.*[._-])?logs?([._-].*)?|.*\.(log|out|err|csv|tsv|jsonl|py|pyc|so|sh)|events\.out\.tfevents\..*", re.IGNORECASE
)
"""Files left out of checkpoints: code, and logs that grow while the job runs, so that the checkpoint would never settle."""
_SMALL = 64 << 10
_MOST_STATE_FILES = 100
"""Most weight files in one folder; a folder with more holds a dataset in pieces, not a checkpoint."""
_MOST_ENTRIES = 50_000
_PACE = 20.0
"""Pause between two scans of the directory, as a multiple of the time one scan takes."""

Files = tuple[tuple[str, int, int], ...]
"""Path, size and mtime_ns of every file; equal tuples mean unchanged files."""


class Candidate(NamedTuple):
    """Files that may be a checkpoint."""

    name: str
    root: Path
    files: Files
    again: Callable[[], Files]
    """Lists the files again, as they are now."""
    place: str = "output"


class Workdir:
    """Scanner for checkpoints in the working directory of a node."""

    def __init__(self, root: Path, source: set[str], since_ns: int):
        """Set up the scanner. `source` has the paths of the job's source files, all of which were written before `since_ns`."""
        self._root, self._source, self._since_ns = root, source, since_ns
        self._not_before = 0.0
        self._last: list[Candidate] = []
        self._warning: str | None = None
        self._warned: set[str] = set()

    def candidates(self, *, now: bool = True) -> list[Candidate]:
        """Return the possible checkpoints, oldest first. Without `now`, a recent result is reused if a scan takes long."""
        started = time.monotonic()
        if now or started >= self._not_before:
            found = [c for name in self._units() if (c := self._candidate(name)) is not None]
            self._last = sorted(found, key=lambda c: max(m for _, _, m in c.files))
            self._not_before = time.monotonic() + _PACE * (time.monotonic() - started)
        return self._last

    def warning(self) -> str | None:
        """Return a new warning for the job's output, or None. Each is returned once."""
        text, self._warning = self._warning, None
        return text

    def _units(self) -> list[str]:
        """Return the names of the folders to scan, and '' for the directory itself."""
        with suppress(OSError):
            folders = [e.name for e in os.scandir(self._root) if e.is_dir(follow_symlinks=False)]
            return ["", *(name for name in sorted(folders) if _may_hold_state(name))]
        return []

    def _candidate(self, unit: str) -> Candidate | None:
        files = self._written(unit)
        state = [path for path, _, _ in files if is_state(path)]
        if not state:
            return None
        if len(state) > _MOST_STATE_FILES:
            self._warn(
                unit,
                f"{len(state)} tensor files in {unit or 'the working directory'} look like data and are not uploaded",
            )
            return None
        name = f"{NAME}/{unit}" if unit else NAME
        return Candidate(name, self._root / unit, files, lambda: self._written(unit), NAME)

    def _written(self, unit: str) -> Files:
        """Return the files of a folder that the job wrote; for the directory itself only weight files and small files."""
        root, prefix = self._root / unit, f"{unit}/" if unit else ""
        found = []
        for file in _below(root) if unit else list_files(root, deep=False):
            path, size, mtime = file
            name = path.rpartition("/")[2]
            is_new = prefix + path not in self._source
            if _STATE.fullmatch(name):
                wanted = is_new or mtime > self._since_ns
            else:
                wanted = is_new and (bool(unit) or size <= _SMALL) and not _NO_STATE.fullmatch(name)
            if wanted:
                found.append(file)
            if len(found) > _MOST_ENTRIES:
                self._warn(unit, f"{unit} has more than {_MOST_ENTRIES} files and is not searched for checkpoints")
                return ()
        return tuple(found)

    def _warn(self, unit: str, text: str) -> None:
        if unit not in self._warned:
            self._warned.add(unit)
            self._warning = f"{text}. Write checkpoints to /output-checkpoint to have them uploaded."


def is_state(path: str) -> bool:
    """Return whether a file holds weights or optimizer state, judged by its name."""
    return _STATE.fullmatch(path.rpartition("/")[2]) is not None


def _may_hold_state(name: str) -> bool:
    return name.lower() not in _NOT_OURS and not is_half_made_name(name)


def _below(root: Path) -> Iterator[tuple[str, int, int]]:
    return list_files(root, deep=True, enter=_may_hold_state)


def list_files(
    root: Path, *, deep: bool, enter: Callable[[str], bool] = lambda name: True
) -> Iterator[tuple[str, int, int]]:
    """Yield regular files in a fixed order; files that disappear meanwhile are skipped.

    `enter` selects the folders to descend into.
    """
    pending = [""]
    while pending:
        prefix = pending.pop()
        try:
            entries = sorted(os.scandir(root / prefix), key=lambda e: e.name)
        except OSError:
            continue
        for entry in entries:
            path = f"{prefix}/{entry.name}" if prefix else entry.name
            if entry.is_dir(follow_symlinks=False):
                if deep and enter(entry.name):
                    pending.append(path)
            elif entry.is_file(follow_symlinks=False) and not (
                is_half_made_name(entry.name) and entry.name != ".metadata"
            ):
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                yield path, status.st_size, status.st_mtime_ns
