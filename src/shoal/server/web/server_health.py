"""State of the server for its admins: problems, disks, database, waiting times of jobs, versions."""

from __future__ import annotations

import platform
import shutil
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import psutil
from sqlalchemy import func, select, text

from shoal import __version__
from shoal.core.backups import Finding
from shoal.core.schema import Utc, View, utcnow
from shoal.core.states import JobState
from shoal.server import doctor
from shoal.server.context import Context
from shoal.server.migrations import HEAD
from shoal.server.models.jobs import Job

_RECENT = 200
"""Number of jobs whose waiting time is counted."""


class Disk(View):
    """A file system that the server writes to."""

    used_for: str
    folder: str
    free: int
    total: int


class ServerHealth(View):
    """State of the server, measured when the page is made."""

    problems: list[str]
    disks: list[Disk]
    database_size: int
    read_ms: float
    """Time of a small query."""
    write_ms: float
    """Time of an empty write, with its wait for those before it."""
    queued: int
    oldest_s: float | None
    """Time for which the job that was queued first has waited."""
    wait_median_s: float | None
    """Median time from submission to start of the newest jobs that were started."""
    wait_longest_s: float | None
    started_at: Utc
    memory: int
    threads: int
    versions: dict[str, str]


def measure(ctx: Context) -> ServerHealth:
    """Return the state of the server. Takes a few milliseconds, or as long as writes wait."""
    process = psutil.Process()
    read_ms, write_ms = _timed(lambda: _read(ctx)), _timed(lambda: ctx.db.write(lambda session: None))
    with ctx.db.read() as session:
        waiting = select(func.count(), func.min(Job.created_at)).where(Job.state == JobState.QUEUED.value)
        queued, first = session.execute(waiting).one()
        started = select(Job.created_at, Job.started_at).where(Job.started_at.is_not(None)).order_by(Job.id.desc())
        waits = [max(0.0, (b - a).total_seconds()) for a, b in session.execute(started.limit(_RECENT)) if b]
    return ServerHealth(
        problems=[str(problem) for problem in ctx.loops.problems()],
        disks=_disks(ctx),
        database_size=sum(path.stat().st_size for path in _database_files(ctx) if path.exists()),
        read_ms=read_ms,
        write_ms=write_ms,
        queued=queued,
        oldest_s=(utcnow() - first).total_seconds() if first else None,
        wait_median_s=statistics.median(waits) if waits else None,
        wait_longest_s=max(waits, default=None),
        started_at=datetime.fromtimestamp(process.create_time(), UTC),
        memory=process.memory_info().rss,
        threads=process.num_threads(),
        versions={
            "Shoal": __version__,
            "Python": sys.version.split()[0],
            "SQLite": sqlite3.sqlite_version,
            "Database schema": HEAD,
            "System": platform.platform(terse=True),
        },
    )


def findings(ctx: Context) -> list[Finding]:
    """Return what `shoal server doctor` finds. Takes about a second."""
    state = "degraded" if (problems := ctx.loops.problems()) else "ok"
    told = [{"name": p.name, "state": p.state, "since_s": p.since_s, "error": p.error} for p in problems]
    health = {"status": "ok", "version": __version__, "instance": ctx.instance, "health": state, "problems": told}
    return doctor.examine(ctx.layout, health)


def _disks(ctx: Context) -> list[Disk]:
    """Return the file systems of the data directory, each once."""
    found: dict[int, Disk] = {}
    for used_for, folder in (
        ("database", ctx.layout.server_dir),
        ("store", ctx.layout.store_dir),
        ("jobs", ctx.layout.nodes_dir),
    ):
        if not folder.exists():
            continue
        device, usage = folder.stat().st_dev, shutil.disk_usage(folder)
        if device in found:
            found[device].used_for += f", {used_for}"
        else:
            found[device] = Disk(used_for=used_for, folder=str(folder), free=usage.free, total=usage.total)
    return list(found.values())


def _database_files(ctx: Context) -> list[Path]:
    return [ctx.layout.database, ctx.layout.database.with_name(f"{ctx.layout.database.name}-wal")]


def _read(ctx: Context) -> None:
    with ctx.db.read() as session:
        session.execute(text("SELECT 1"))


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return round(1000 * (time.perf_counter() - began), 2)
