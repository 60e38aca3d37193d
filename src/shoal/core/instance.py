"""Identity of a data directory as it stands on its disk, so that a copy is never taken for the original.

`server/instance.json` holds an id and what it was given for: device and inode of `server/`, its path, and the host. A renamed
directory has the same inode; one restored in place, or on a file system that numbers anew, the same path on the same host:
both keep the id. Any other is a copy (cp, rsync, a backup restored elsewhere, a file system snapshot): the first server that
starts on it gives it an id of its own, and until then no running server belongs to it.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from shoal.core.ids import new_id
from shoal.core.private import write_private
from shoal.core.settings import Layout


@dataclass(frozen=True, slots=True)
class Instance:
    id: str
    copy_of: str | None = None
    """The id of the original, from the first start on a copy until `settle`."""


def claim(layout: Layout, *, take_over: bool = False) -> Instance:
    """Return the identity of this data directory; a new or copied one gets its own. For the holder of the server lock.

    `take_over`: a person says that the original is gone, so this directory takes its place, id included.
    """
    found = _read(layout)
    known = _id(found)
    if known is not None and (take_over or _is_same(found, layout.server_dir)):
        original = found.get("copy_of")
        made = Instance(known, original if isinstance(original, str) and not take_over else None)
    else:
        made = Instance(new_id("inst"), copy_of=known)
    _write(layout, made, found)
    return made


def settle(layout: Layout, instance: Instance) -> None:
    """Note that what a copy brought along of the original was dealt with; a crash before that leaves it to the next start."""
    _write(layout, Instance(instance.id), _read(layout))


def instance_id(layout: Layout) -> str | None:
    """Return the id this data directory has; None before its first start, also where it is a copy not yet started."""
    found = _read(layout)
    return _id(found) if _is_same(found, layout.server_dir) else None


def is_held(lock: Path) -> bool:
    """Return whether a process holds the lock file. The kernel ties the lock to the file, so that of a copy is free."""
    try:
        # Readable: NFS gives a shared lock only to those who may read.
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(fd)


def _is_same(found: dict[str, object], directory: Path) -> bool:
    try:
        now = _describe(directory)
    except OSError:
        return False
    same_path = found.get("path") == now["path"]
    # Device numbers may change with a reboot; but a snapshot of a file system has the same inodes on another device.
    same_inode = found.get("ino") == now["ino"] and (found.get("dev") == now["dev"] or same_path)
    return same_inode or (same_path and found.get("host") == now["host"])


def _describe(directory: Path) -> dict[str, object]:
    status = directory.stat()
    return {"dev": status.st_dev, "ino": status.st_ino, "path": str(directory), "host": _host()}


def _host() -> str:
    try:
        known = Path("/etc/machine-id").read_text().strip()
    except OSError:
        known = ""
    return known or socket.gethostname()


def _write(layout: Layout, instance: Instance, found: dict[str, object]) -> None:
    body = {"id": instance.id, **_describe(layout.server_dir)}
    if instance.copy_of:
        body["copy_of"] = instance.copy_of
    if body != found:
        write_private(layout.instance_file, json.dumps(body), durable=True)


def _read(layout: Layout) -> dict[str, object]:
    try:
        found = json.loads(layout.instance_file.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _id(found: dict[str, object]) -> str | None:
    known = found.get("id")
    return known if isinstance(known, str) and known else None
