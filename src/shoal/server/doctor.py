"""Diagnosis of a data directory and its server: each finding with the command or action that solves it.

Reads only, and works with or without a running server. `data_check` reads everything; this takes a second.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from shoal import __version__
from shoal.core.backups import Finding, FindingState
from shoal.core.errors import ShoalError
from shoal.core.instance import instance_id, is_held
from shoal.core.schema import utcnow
from shoal.core.settings import Layout, ServerSettings
from shoal.server.backup import snapshot
from shoal.server.backup.create import KEYS, open_store
from shoal.server.backup.place import Place
from shoal.server.disk_reserve import free_bytes
from shoal.server.migrations import HEAD, MADE_BY, refuse_newer
from shoal.server.people.secret_key import CHECK
from shoal.server.people.vault import Vault

_LEAST_FREE = 1 << 30
_OLDEST_PYTHON = (3, 11)
Health = dict[str, Any]
"""Answer of the running server's /health; empty if none runs or answers."""


def examine(layout: Layout, health: Health, *, now: Callable[[], datetime] = utcnow) -> list[Finding]:
    """Return the findings about a data directory, in the order in which to deal with them."""
    found: list[Finding] = []
    try:
        settings = ServerSettings.load(layout)
        found.append(_finding("settings", "ok", f"{layout.settings_file.name} is valid"))
    except (ShoalError, ValueError, OSError) as error:
        text = error.message if isinstance(error, ShoalError) else f"{layout.settings_file}: {error}"
        return [_finding("settings", "error", text, f"Correct {layout.settings_file}.")]
    parts: dict[str, Callable[[], Iterator[Finding]]] = {
        "server": lambda: _server(layout, health),
        "loops": lambda: _loops(health),
        "database": lambda: _database(layout),
        "secret key": lambda: _secret_key(layout),
        "permissions": lambda: _permissions(layout),
        "disk": lambda: _disk(layout, settings),
        "store": lambda: _store(layout, settings),
        "clock": lambda: _clock(layout, health, now),
        "backups": lambda: _backups(layout, settings, now),
        "versions": lambda: _versions(layout, health),
    }
    for name, look in parts.items():
        try:
            found += look()
        except Exception as error:
            text = error.message if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"
            hint = error.hint if isinstance(error, ShoalError) and error.hint else "shoal server log"
            found.append(_finding(name, "error", text, hint))
    return found


def _finding(name: str, state: FindingState, text: str, fix: str = "") -> Finding:
    return Finding(name=name, state=state, text=text, fix=fix)


def _server(layout: Layout, health: Health) -> Iterator[Finding]:
    if health:
        yield _finding("server", "ok", "running, and it answers")
    elif is_held(layout.server_lock):
        yield _finding("server", "error", "it runs but does not answer", "shoal server log; then shoal server stop")
    else:
        yield _finding("server", "warning", "not running", "shoal server start")
    if layout.instance_file.exists() and instance_id(layout) is None:
        yield _finding(
            "instance",
            "warning",
            "this directory is a copy; its first start makes it an instance of its own",
            "shoal server start; if the original is gone: shoal server start --take-over",
        )


def _loops(health: Health) -> Iterator[Finding]:
    problems = health.get("problems") or []
    for problem in problems:
        why = problem.get("error") or "the log has the reason"
        text = f"{problem['name']} is {problem['state']} for {problem['since_s']:.0f} s: {why}"
        yield _finding("loops", "error", text, "shoal server log; it is tried again all the time")
    if health and not problems:
        yield _finding("loops", "ok", "all background loops work")


def _database(layout: Layout) -> Iterator[Finding]:
    if not layout.database.exists():
        yield _finding("database", "warning", f"there is none at {layout.database}", "shoal server start makes one")
        return
    try:
        version = snapshot.version_of(layout.database)
    except (ShoalError, sqlite3.DatabaseError) as error:
        text = error.message if isinstance(error, ShoalError) else str(error)
        yield _finding("database", "error", text, "shoal server check; restore a backup: shoal server restore PLACE")
        return
    refuse_newer(version, snapshot.fact(layout.database, MADE_BY))
    size = layout.database.stat().st_size
    if version != HEAD:
        yield _finding(
            "database",
            "warning",
            f"its tables have version {version}, this Shoal uses {HEAD}",
            "shoal server stop; shoal server start (it is copied first, then upgraded)",
        )
    else:
        yield _finding(
            "database", "ok", f"version {version}, {size / 1e6:.1f} MB; to read all of it: shoal server check"
        )


def _secret_key(layout: Layout) -> Iterator[Finding]:
    known = snapshot.fact(layout.database, CHECK) if layout.database.exists() else None
    restore = (
        f"Put {layout.secret_key} back from a backup, or give up what it encrypted: shoal server start --new-secret-key"
    )
    if not layout.secret_key.exists():
        if known is not None:
            yield _finding("secret key", "error", "secret.key is missing; the server will not start", restore)
        return
    try:
        matches = known is None or Vault(layout.secret_key).check_value == known
    except ValueError:
        matches = False
    if matches:
        yield _finding("secret key", "ok", "secret.key matches the database")
    else:
        yield _finding("secret key", "error", "secret.key is not the key this database was encrypted with", restore)


def _permissions(layout: Layout) -> Iterator[Finding]:
    bad = []
    for path in [layout.root, layout.server_dir, *(layout.server_dir / name for name in sorted(KEYS))]:
        if not path.exists():
            continue
        status = path.stat()
        if status.st_uid != os.geteuid():
            bad.append((path, f"belongs to user {status.st_uid}, not to the user of this command", "chown"))
        elif status.st_mode & 0o007 or (path.suffix == ".key" and status.st_mode & 0o077):
            bad.append((path, "can be read by other users", "chmod go-rwx"))
        elif not os.access(path, os.W_OK):
            bad.append((path, "cannot be written", "chmod u+rw"))
    for path, what, command in bad:
        user = f" {os.geteuid()}" if command == "chown" else ""
        yield _finding("permissions", "error", f"{path} {what}", f"{command}{user} {path}")
    if not bad:
        yield _finding("permissions", "ok", "only this user can read the data directory and its keys")


def _disk(layout: Layout, settings: ServerSettings) -> Iterator[Finding]:
    seen: dict[int, str] = {}
    for name, folder in (("server", layout.server_dir), ("store", layout.store_dir), ("nodes", layout.nodes_dir)):
        if not folder.exists() or (device := folder.stat().st_dev) in seen:
            continue
        seen[device] = name
        free = free_bytes(folder)
        files = os.statvfs(folder).f_favail
        text = f"{free / 1e9:.1f} GB free for {folder}"
        fix = "shoal store gc; delete jobs and checkpoints; or move the data directory to a larger disk"
        if free < _LEAST_FREE:
            yield _finding("disk", "error" if free < settings.disk_reserve_mb << 20 else "warning", text, fix)
        elif 0 < files < 1000:
            yield _finding("disk", "warning", f"{files} files can be created in {folder}", fix)
        else:
            yield _finding("disk", "ok", text)


def _store(layout: Layout, settings: ServerSettings) -> Iterator[Finding]:
    with open_store(layout, settings) as store:
        count = sum(1 for _ in store.list_manifests())
    where = settings.store or str(layout.store_dir)
    yield _finding("store", "ok", f"{count} artifacts in {where}; to read all of them: shoal server check")


def _clock(layout: Layout, health: Health, now: Callable[[], datetime]) -> Iterator[Finding]:
    fix = "Let the system set its clock: timedatectl set-ntp true"
    newest = max((p.stat().st_mtime for p in (layout.database, layout.server_log) if p.exists()), default=0.0)
    ahead_s = newest - now().timestamp()
    if ahead_s > 60:
        made = datetime.fromtimestamp(newest, UTC)
        yield _finding("clock", "error", f"the clock is before the newest data, of {made:%Y-%m-%d %H:%M} UTC", fix)
        return
    clock = health.get("clock") or {}
    if abs(jumped_s := float(clock.get("jumped_s") or 0.0)) > 60:
        yield _finding("clock", "warning", f"the clock was changed by {jumped_s:+.0f} s while the server ran", fix)
        return
    yield _finding("clock", "ok", f"{now():%Y-%m-%d %H:%M} UTC")


def _backups(layout: Layout, settings: ServerSettings, now: Callable[[], datetime]) -> Iterator[Finding]:
    if not settings.backup_to:
        how = f"set backup_to in {layout.settings_file}; or now: shoal server backup create PLACE"
        yield _finding("backups", "warning", "no backups are scheduled", how)
        return
    with Place(settings.backup_to) as place:
        mine = [b for b in place.backups() if b.instance == (instance_id(layout) or "")]
    if not mine:
        yield _finding("backups", "warning", f"none at {settings.backup_to} yet", "shoal server backup create")
        return
    age_h = (now() - mine[0].made_at).total_seconds() / 3600
    text = f"{len(mine)} at {settings.backup_to}, the newest {age_h:.1f} h old"
    if age_h > 2 * settings.backup_every_h + 1:
        yield _finding("backups", "error", text, "shoal server backup create; shoal server log")
    elif mine[0].unreadable:
        lost = f"{len(mine[0].unreadable)} damaged artifacts are not in the newest backup"
        yield _finding("backups", "error", lost, "shoal store check")
    else:
        yield _finding("backups", "ok", text)


def _versions(layout: Layout, health: Health) -> Iterator[Finding]:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    parts = f"Shoal {__version__}, Python {python}, SQLite {sqlite3.sqlite_version}"
    running = health.get("version")
    if running and running != __version__:
        yield _finding(
            "versions",
            "warning",
            f"the server runs Shoal {running}, this command is {__version__}",
            "shoal server stop; shoal server start",
        )
    elif sys.version_info[:2] < _OLDEST_PYTHON:
        yield _finding("versions", "error", f"{parts}: too old", "Install Python 3.11 or newer.")
    else:
        yield _finding("versions", "ok", parts)
