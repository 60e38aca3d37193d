"""The record a running server leaves in its data directory, and whether that server is this directory's own and answers.

Three things must agree before a process is touched: the server lock of this directory is held, the record was written for
this directory (a copied file names another place), and the process with that pid is the one that wrote it. Until a new
server has the lock, the record of its launch and the time at which that very process began take the place of the lock.
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

from shoal.core.boot import boot_id
from shoal.core.instance import instance_id, is_held
from shoal.core.place import place
from shoal.core.private import write_private
from shoal.core.settings import Layout

CLOCK_SLACK_S = 2.0
"""How far apart two readings of one process's start time may be."""
HEALTH_TIMEOUT_S = 5.0
_LOADING = "loading its program"
"""Step of a start before the server has its lock."""


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """The content of the server file, or of the starting file (without a URL)."""

    pid: int
    url: str
    boot_id: str
    create_time: float
    private: bool = True
    """True if the owner's key file opens it; a server that listens to the network has accounts instead."""
    doing: str = ""
    """The step of its start it is at."""


def read_record(layout: Layout) -> ServerRecord | None:
    """Return the record of this directory's server, dead or alive; None where there is none or it came with a copy."""
    return _read(layout, layout.server_file)


def note_launch(layout: Layout, pid: int) -> None:
    """Write the starting file for a server that was just launched: it takes its lock only seconds later."""
    who = {"pid": pid, "create_time": _process_start(pid), "boot_id": boot_id(), "place": place(layout.server_dir)}
    with suppress(OSError):  # on a full disk a server must start all the same
        write_private(layout.starting_file, json.dumps({**who, "doing": _LOADING}))


def starting_record(layout: Layout) -> ServerRecord | None:
    """Return the record of this directory's server that has not come up yet."""
    record = _read(layout, layout.starting_file)
    if record is None or not is_alive(record):
        return None
    # Without the lock nothing but the time of its start tells the process from another one that has its pid now.
    is_loading = record.doing == _LOADING and _has_started_at(record, _process_start(record.pid))
    return record if is_loading or is_held(layout.server_lock) else None


def own_record(layout: Layout) -> ServerRecord | None:
    """Return the record of the live server of this data directory, whether it answers or not."""
    record = read_record(layout)
    return record if record and is_held(layout.server_lock) and is_alive(record) else None


def running_server(layout: Layout) -> ServerRecord | None:
    """Return the record of the server of this data directory, if it lives and answers."""
    record = own_record(layout)
    health = health_of(record.url) if record else None
    if record is None or health is None:
        return None
    said, known = health.get("instance"), instance_id(layout)
    if said and known and said != known:
        return None  # another server has taken the port
    return replace(record, private=bool(health.get("private", True)))


def is_alive(record: ServerRecord) -> bool:
    """Return whether that very process lives: pids are reused, and after a reboot they all are."""
    if record.boot_id and record.boot_id != boot_id():
        return False
    started = _process_start(record.pid)
    if started is None:
        return False
    # Setting the clock moves a start time, so the command line decides when the times differ.
    return _has_started_at(record, started) or _is_own_server(record.pid)


def health_of(url: str, *, timeout_s: float = HEALTH_TIMEOUT_S) -> dict[str, Any] | None:
    """Return what the Shoal server there says of its health, good or bad. Plain http.client: this runs before every command."""
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


def _read(layout: Layout, path: Path) -> ServerRecord | None:
    try:
        found = json.loads(path.read_text())
        record = ServerRecord(
            int(found["pid"]),
            str(found.get("url", "")),
            str(found.get("boot_id", "")),
            float(found["create_time"]),
            doing=str(found.get("doing", "")),
        )
        written_for = found.get("place")  # servers of 0.1 do not say; for those the lock decides
        return record if written_for in (None, place(layout.server_dir)) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _has_started_at(record: ServerRecord, started: float | None) -> bool:
    return started is not None and abs(started - record.create_time) <= CLOCK_SLACK_S


def _process_start(pid: int) -> float | None:
    """Return when a live process started, in Unix seconds as psutil counts them; None if there is none, or a zombie.

    Read by hand because importing psutil costs more than the rest of this check.
    """
    try:
        # The command name is in parentheses and may itself hold spaces and parentheses.
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
        return process.stat().st_uid == os.getuid() and b"shoal.server" in (process / "cmdline").read_bytes().split(
            b"\0"
        )
    except OSError:
        return False
