"""Identity of a data directory on its disk, so that a copy is never mistaken for the original.

`server/instance.json` holds an id and what it was issued for: the device and inode of `server/`, its path, and the host. A
renamed directory has the same inode. One that was restored in place, or is on a file system that assigns new inode numbers, has
the same path on the same host. Both keep the id. Any other directory is a copy (cp, rsync, a backup restored elsewhere, a file
system snapshot): the first server that starts on it gives it a new id, and until then no running server belongs to it.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from shoal.core import system
from shoal.core.ids import new_id
from shoal.core.private import write_private
from shoal.core.settings import Layout


@dataclass(frozen=True, slots=True)
class Instance:
    """Identity of a data directory."""

    id: str
    copy_of: str | None = None
    """Id of the original, from the first start on a copy until `mark_copy_handled`; otherwise None."""


def claim(layout: Layout, *, take_over: bool = False) -> Instance:
    """Return the identity of this data directory. A new or copied directory gets a new one. The caller holds the server lock.

    `take_over`: an admin states that the original is gone, so this directory takes its place and keeps its id.
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


def assign(layout: Layout, *, copy_of: str) -> Instance:
    """Give a restored directory an identity of its own; its first start deals with what it brought along from the original."""
    made = Instance(new_id("inst"), copy_of=copy_of)
    _write(layout, made, {})
    return made


def mark_copy_handled(layout: Layout, instance: Instance) -> None:
    """Record that everything a copy brought along from the original has been dealt with.

    A crash before this leaves it to the next start.
    """
    _write(layout, Instance(instance.id), _read(layout))


def instance_id(layout: Layout) -> str | None:
    """Return the id of this data directory; None before its first start, and for a copy that was not started yet."""
    found = _read(layout)
    return _id(found) if _is_same(found, layout.server_dir) else None


def is_held(lock: Path) -> bool:
    """Return whether a process holds the lock file.

    The kernel ties a lock to the file itself, so the file of a copy is not locked.
    """
    try:
        # Open for reading: NFS grants a shared lock only on a readable descriptor.
        fd = os.open(lock, os.O_RDONLY | system.CLOEXEC)
    except OSError:
        return False
    try:
        system.flock(fd, system.LOCK_SH | system.LOCK_NB)
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
