"""Identifies the process that holds a directory by pid, start time and boot id, so that a reused pid is not mistaken for it."""

from __future__ import annotations

import json
from pathlib import Path

import psutil

from shoal.core.boot import boot_id
from shoal.core.directory_identity import is_own, mark
from shoal.core.private import write_private


def sign(path: Path) -> None:
    """Write a file that says that this process holds its directory."""
    me = psutil.Process()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    body = {"pid": me.pid, "create_time": me.create_time(), "boot_id": boot_id(), **mark(path.parent)}
    write_private(path, json.dumps(body))


def holder(path: Path) -> psutil.Process | None:
    """Return the running process that wrote the file, or None if it has ended or the directory is a copy."""
    try:
        who = json.loads(path.read_text())
        if not is_own(who, path.parent):
            return None
        process = psutil.Process(who["pid"])
        same = who["boot_id"] == boot_id() and abs(process.create_time() - who["create_time"]) < 1.0
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except (OSError, ValueError, KeyError, TypeError, psutil.Error):
        return None
