"""Who holds a directory: pid, start and boot of a process, so that a stale pid is never taken for it."""

from __future__ import annotations

import json
from pathlib import Path

import psutil

from shoal.core.boot import boot_id
from shoal.core.private import write_private


def sign(path: Path) -> None:
    """Leave word that this process holds it."""
    me = psutil.Process()
    write_private(path, json.dumps({"pid": me.pid, "create_time": me.create_time(), "boot_id": boot_id()}))


def holder(path: Path) -> psutil.Process | None:
    """The live process that signed; None if it is dead, or its pid is somebody else's by now."""
    try:
        who = json.loads(path.read_text())
        process = psutil.Process(who["pid"])
        same = who["boot_id"] == boot_id() and abs(process.create_time() - who["create_time"]) < 1.0
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except (OSError, ValueError, KeyError, psutil.Error):
        return None
