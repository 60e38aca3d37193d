"""The record that a running server writes to its data directory, and checks that this server is the directory's and answers.

Three things must agree before a process is touched: the server lock of this directory is held, the record was written for this
directory (a copied file names another place), and the process with that pid is the one that wrote it. Until a new server has
the lock, the record of its launch and the start time of that very process replace the lock.
"""

from __future__ import annotations

import http.client
import json
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from shoal.core import system
from shoal.core.boot import boot_id
from shoal.core.directory_identity import place
from shoal.core.instance import instance_id, is_held
from shoal.core.private import write_private
from shoal.core.settings import Layout

CLOCK_SLACK_S = 2.0
"""Largest difference in seconds between two readings of one process's start time."""
HEALTH_TIMEOUT_S = 5.0
_LOADING = "loading its program"
"""Phase of a start before the server has its lock."""


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """Content of the server file, or of the starting file (without a URL)."""

    pid: int
    url: str
    boot_id: str
    create_time: float
    private: bool = True
    """True if the owner's key file gives access. A server that is open to the network has accounts instead."""
    doing: str = ""
    """Present phase of its start."""
    public_url: str = ""
    """URL for people on other machines; differs from `url` if the server speaks https."""


def read_record(layout: Layout) -> ServerRecord | None:
    """Return the record of this directory's server, dead or alive; None if there is none or it belongs to another directory."""
    return _read(layout, layout.server_file)


def note_launch(layout: Layout, pid: int) -> None:
    """Write the starting file for a server that was just launched: it gets its lock only seconds later."""
    who = {"pid": pid, "create_time": _process_start(pid), "boot_id": boot_id(), "place": place(layout.server_dir)}
    with suppress(OSError):  # on a full disk a server must start all the same
        write_private(layout.starting_file, json.dumps({**who, "doing": _LOADING}))


def starting_record(layout: Layout) -> ServerRecord | None:
    """Return the record of this directory's server if it is still starting; otherwise None."""
    record = _read(layout, layout.starting_file)
    if record is None or not is_alive(record):
        return None
    # Without the lock only the start time tells the process from another one that has got its pid.
    is_loading = record.doing == _LOADING and _has_started_at(record, _process_start(record.pid))
    return record if is_loading or is_held(layout.server_lock) else None


def own_record(layout: Layout) -> ServerRecord | None:
    """Return the record of the live server of this data directory, whether it answers or not; None if there is none."""
    record = read_record(layout)
    return record if record and is_held(layout.server_lock) and is_alive(record) else None


def running_server(layout: Layout) -> ServerRecord | None:
    """Return the record of the server of this data directory if it is alive and answers; otherwise None."""
    record = own_record(layout)
    health = health_of(record.url) if record else None
    if record is None or health is None:
        return None
    said, known = health.get("instance"), instance_id(layout)
    if said and known and said != known:
        return None  # another server has taken the port
    return replace(record, private=bool(health.get("private", True)))


def is_alive(record: ServerRecord) -> bool:
    """Return whether the very process of the record is alive. Pids are reused, especially after a reboot."""
    if record.boot_id and record.boot_id != boot_id():
        return False
    started = _process_start(record.pid)
    if started is None:
        return False
    # Setting the clock moves a start time, so the command line decides when the times differ.
    return _has_started_at(record, started) or _is_own_server(record.pid)


def health_of(url: str, *, timeout_s: float = HEALTH_TIMEOUT_S) -> dict[str, Any] | None:
    """Return the health report of the Shoal server at this URL, or None. Uses http.client: this runs before every command."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=timeout_s)
    try:
        connection.request("GET", "/api/v1/health")
        found = json.loads(connection.getresponse().read())
        return found if isinstance(found, dict) and "status" in found and "version" in found else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def private_ca(url: str) -> str | None:
    """Return the PEM certificate of a server's private CA, or None if it has none. Nothing is checked: compare its fingerprint."""
    import ssl

    parts = urlsplit(url)
    if parts.scheme == "https":
        unchecked = ssl._create_unverified_context()  # noqa: S323  what is fetched is checked by its fingerprint
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=HEALTH_TIMEOUT_S, context=unchecked
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=HEALTH_TIMEOUT_S)
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}/api/v1/ca")
        answer = connection.getresponse()
        text = answer.read(64 << 10).decode("ascii", "replace")
        return text if answer.status == 200 and "BEGIN CERTIFICATE" in text else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _read(layout: Layout, path: Path) -> ServerRecord | None:
    try:
        found = json.loads(path.read_text())
        record = ServerRecord(
            int(found["pid"]),
            str(found.get("url", "")),
            str(found.get("boot_id", "")),
            float(found["create_time"]),
            doing=str(found.get("doing", "")),
            public_url=str(found.get("public_url") or found.get("url", "")),
        )
        written_for = found.get("place")  # servers of 0.1 do not write it; for those the lock decides
        return record if written_for in (None, place(layout.server_dir)) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _has_started_at(record: ServerRecord, started: float | None) -> bool:
    return started is not None and abs(started - record.create_time) <= CLOCK_SLACK_S


def _process_start(pid: int) -> float | None:
    """Return the start time of a live process in Unix seconds, as psutil does; None if it does not exist or is a zombie.

    Implemented here because importing psutil costs more than the rest of this check.
    """
    try:
        # The command name is in parentheses and may itself contain spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    except (OSError, StopIteration):
        return None
    if fields[0] in ("Z", "X"):
        return None
    return int(fields[19]) / os.sysconf("SC_CLK_TCK") + float(boot.split()[1])


def _is_own_server(pid: int) -> bool:
    try:
        process = Path(f"/proc/{pid}")
        return process.stat().st_uid == system.user_id() and b"shoal.server" in (
            process / "cmdline"
        ).read_bytes().split(b"\0")
    except OSError:
        return False
