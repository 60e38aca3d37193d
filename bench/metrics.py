"""Metrics into a real server over HTTP, durable, and a chart of a million points out of it; beside plain SQLite inserts.

    python bench/metrics.py [--points 1000000] [--names 2] [--senders 2] [--json]

The peer is the simplest thing that could work: one row per point in an indexed SQLite table of the same settings (WAL, FULL),
inserted in batches by one process without HTTP, and a SELECT of one metric thinned in Python. The senders are processes of
their own that do what an agent does: number lines, compress, post, wait for the acknowledgement.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import shutil
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import zstandard

from shoal.agent.link import Link
from shoal.client import Client
from shoal.client.local import read_record
from shoal.core.ids import new_id
from shoal.core.schema import utcnow
from shoal.server.db import Database
from shoal.server.models.jobs import Attempt, Node
from shoal.server.policy import hash_token
from shoal.testing.live import LiveServer, live_server

TARGET_INGEST = 100_000
TARGET_CHART_S = 0.1
BATCH_LINES = 8_000
CHART_POINTS = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=1_000_000, help="of one metric")
    parser.add_argument("--names", type=int, default=2, help="metrics per step")
    parser.add_argument("--senders", type=int, default=2, help="jobs that log at once, for the ingest rate")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="shoal-bench-"))
    try:
        figures = measure(work, options.points, options.names, options.senders)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(json.dumps(figures, indent=2) if options.json else table(figures))


def measure(work: Path, steps: int, names: int, senders: int) -> dict[str, float]:
    with live_server(work / "home", slots=1) as server, server.client() as client:
        jobs = make_jobs(server, client, senders)
        each = steps // senders
        bodies = [segments(each, names) for _ in jobs]
        before = server_cpu_s(server)
        seconds = send_all(server, [token for _, token in jobs], bodies)
        busy = server_cpu_s(server) - before
        chart_job, token = make_jobs(server, client, 1, first=senders)[0]
        send(server.layout.server_file, token, segments(steps, names))
        charts = [timed_chart(client, chart_job)]
        before = server_cpu_s(server)
        charts += [timed_chart(client, chart_job) for _ in range(5)]
        chart_cpu_s = (server_cpu_s(server) - before) / 5
    points = each * senders * names
    rows_s, select_s = peer(work / "peer.db", steps, names)
    return {
        "points sent": points,
        "ingest, points/s": round(points / seconds),
        "ingest, points per s of the server's CPU": round(points / busy),
        "SQLite insert, points/s": round(steps * names / rows_s),
        f"chart of {steps} points, first, s": round(charts[0], 4),
        f"chart of {steps} points, s": round(statistics.median(charts[1:]), 4),
        "of it the server's CPU, s": round(chart_cpu_s, 4),
        "SQLite select of as many, s": round(select_s, 4),
    }


def server_cpu_s(server: LiveServer) -> float:
    """Return the processor time of the server, the only figure that is meaningful on a busy machine."""
    record = read_record(server.layout)
    assert record is not None
    times = psutil.Process(record.pid).cpu_times()
    return float(times.user + times.system)


def make_jobs(server: LiveServer, client: Client, count: int, *, first: int = 0) -> list[tuple[str, str]]:
    """Create jobs whose nodes never run; return (job, token of its agent) for each."""
    from shoal.core.metrics import RunImport

    made = []
    db = Database(server.layout.database)
    for index in range(first, first + count):
        run = RunImport(run_id=f"bench-{index}", name=f"bench-{index}", created=utcnow())
        job, token = client.runs.begin(run).job.id, f"bench-token-{index}"

        def work(session: Any, job: str = job, token: str = token) -> None:
            attempt = Attempt(
                id=new_id("att"), job_id=job, number=2, state="ended", fenced=True, num_nodes=1, created_at=utcnow()
            )
            session.add(attempt)
            session.flush()
            session.add(
                Node(
                    attempt_id=attempt.id, index=0, machine="m", slots=[], state="exited", token_hash=hash_token(token)
                )
            )

        db.write(work)
        made.append((job, token))
    db.close()
    return made


def segments(steps: int, names: int) -> list[tuple[int, int, bytes]]:
    """Return segments as an agent sends them, made beforehand so that only sending is measured."""
    rng, compress, made = random.Random(0), zstandard.ZstdCompressor(level=3).compress, []
    for first in range(0, steps, BATCH_LINES):
        lines = []
        for i in range(first, min(first + BATCH_LINES, steps)):
            values = ",".join(f'"metric-{n}":{rng.random()!r}' for n in range(names))
            lines.append(
                f'{{"s":{i},"t":{1.7e9 + i / 100:.3f},"n":{i},"k":"s","i":{i},"v":{{{values}}},"rank":0,"q":{i}}}'
            )
        made.append((first, len(lines), compress("\n".join(lines).encode())))
    return made


def send(server_file: Path, token: str, bodies: list[tuple[int, int, bytes]]) -> None:
    link = Link("", token, str(server_file))
    for first, count, body in bodies:
        reply = link.post_bytes(f"/segments/metric?seq_first={first}&count={count}", body)
        assert reply["next_seq"] == first + count, reply


def send_all(server: LiveServer, tokens: list[str], bodies: list[list[tuple[int, int, bytes]]]) -> float:
    context = multiprocessing.get_context("fork")
    senders = [
        context.Process(target=send, args=(server.layout.server_file, token, part))
        for token, part in zip(tokens, bodies, strict=True)
    ]
    start = time.perf_counter()
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    assert all(sender.exitcode == 0 for sender in senders)
    return time.perf_counter() - start


def timed_chart(client: Client, job: str) -> float:
    start = time.perf_counter()
    found = client.metrics.read(job, ["metric-0"], points=CHART_POINTS)["metrics"]["metric-0"]
    assert CHART_POINTS // 2 <= len(found) <= CHART_POINTS
    return time.perf_counter() - start


def peer(path: Path, steps: int, names: int) -> tuple[float, float]:
    db = sqlite3.connect(path, isolation_level=None)
    for pragma in ("journal_mode=WAL", "synchronous=FULL"):
        db.execute(f"PRAGMA {pragma}")
    db.execute(
        "CREATE TABLE points (job TEXT, name TEXT, step INTEGER, t REAL, value REAL, PRIMARY KEY (job, name, step)) WITHOUT ROWID"
    )
    rng = random.Random(0)
    rows = [("job", f"metric-{n}", i, i / 100, rng.random()) for i in range(steps) for n in range(names)]
    start = time.perf_counter()
    for first in range(0, len(rows), BATCH_LINES * names):
        db.execute("BEGIN IMMEDIATE")
        db.executemany("INSERT INTO points VALUES (?, ?, ?, ?, ?)", rows[first : first + BATCH_LINES * names])
        db.execute("COMMIT")
    inserted = time.perf_counter() - start
    start = time.perf_counter()
    found = db.execute(
        "SELECT step, value FROM points WHERE job = 'job' AND name = 'metric-0' ORDER BY step"
    ).fetchall()
    size = max(1, len(found) // (CHART_POINTS // 2))
    for first in range(0, len(found), size):
        part = found[first : first + size]
        min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])
    selected = time.perf_counter() - start
    db.close()
    return inserted, selected


def table(figures: dict[str, float]) -> str:
    lines = [f"{name:<42} {value:>14,}" for name, value in figures.items()]
    ingest = figures["ingest, points/s"]
    chart = next(value for name, value in figures.items() if name.startswith("chart") and "first" not in name)
    lines.append(f"ingest ≥ {TARGET_INGEST:,} points/s: {'yes' if ingest >= TARGET_INGEST else 'NO'}")
    lines.append(f"chart ≤ {TARGET_CHART_S} s: {'yes' if chart <= TARGET_CHART_S else 'NO'}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
