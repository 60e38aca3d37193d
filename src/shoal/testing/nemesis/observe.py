"""Reads what is there at the end of a run, when all faults are over and every job has ended."""

from __future__ import annotations

import hashlib
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from shoal.client import Client
from shoal.core.datasets import DatasetStatus
from shoal.core.errors import ShoalError
from shoal.testing.live import processes_of
from shoal.testing.nemesis.workload import line_key, read_witness
from shoal.testing.nemesis.world import World
from shoal.testing.patience import patient
from shoal.testing.processes import command


def wait_until_ended(world: World, quiet_s: float) -> tuple[float, list[str]]:
    """Wait until every job has ended and its last records have arrived; return how long the jobs took, and those that have not
    ended if nothing changes for `quiet_s`.

    As long as something changes, nothing is stuck, however slow the machine is.
    """

    def what_is_open() -> dict[str, object]:
        with world.connect() as client:
            jobs = [job for job in _all_jobs(client) if job["ended_at"] is None or job["status"] in _OPEN]
            sweeps = [sweep for sweep in client.sweeps.list() if sweep.ended_at is None]
        seen: dict[str, object] = {job["name"]: (job["status"], job["attempts"], job["progress"]) for job in jobs}
        return seen | {sweep.name: sweep.status for sweep in sweeps}

    ended = wait_for_standstill(what_is_open, patient(quiet_s))
    # A killed agent never says that all has arrived: the rest of its records is waited for as long as some come.
    wait_for_standstill(lambda: _on_their_way(world), patient(_LAST_RECORDS_S), every_s=0.2)
    return ended


def _on_their_way(world: World) -> dict[str, object]:
    """Return the nodes that have ended and whose agents, or the recovery, have records left to send, with how many came."""
    heads = """SELECT n.attempt_id, n."index", coalesce(sum(h.next_seq), 0) FROM nodes n
        LEFT JOIN stream_heads h ON h.attempt_id = n.attempt_id AND h.node = n."index"
        WHERE n.state = 'exited' AND NOT n.final GROUP BY 1, 2"""
    with closing(sqlite3.connect(f"file:{world.layout.database}?mode=ro", uri=True)) as connection:
        return {f"{attempt}.{node}": count for attempt, node, count in connection.execute(heads)}


def wait_for_standstill(
    read: Callable[[], dict[str, object]], quiet_s: float, *, every_s: float = 1.0
) -> tuple[float, list[str]]:
    """Call `read` until it finds nothing, or the same for `quiet_s`; return the seconds that took and the names it still finds."""
    began = changed = time.monotonic()
    before: dict[str, object] | None = None
    while found := read():
        if found != before:
            before, changed = found, time.monotonic()
        if time.monotonic() - changed > quiet_s:
            break
        time.sleep(every_s)
    return time.monotonic() - began, list(found)


_OPEN = ("queued", "starting", "running")
_LAST_RECORDS_S = 5.0


def observe(world: World) -> dict[str, Any]:
    """Return all that the API shows, the ledger and the processes that are left."""
    with world.connect() as client:
        jobs = {job["id"]: _job(client, job["id"]) for job in _all_jobs(client)}
        available = [view for view in client.datasets.list() if view.status is DatasetStatus.AVAILABLE]
        datasets = {view.name: _digest(client, view.name) for view in available}
        keys = [key.name for key in client.keys.list() if key.revoked_at is None]
        sweeps = [
            {
                "id": s.id,
                "name": s.name,
                "status": s.status.value,
                "trials": [t.state.value for t in client.sweeps.all_trials(s.id)],
            }
            for s in client.sweeps.list()
        ]
        ledger_problems = [p.what for p in client.billing.verify(everything=True).problems]
    return {
        "jobs": jobs,
        "witness": read_witness(world.witness),
        "datasets": datasets,
        "keys": keys,
        "sweeps": sweeps,
        "slots": world.slots,
        "ledger_problems": ledger_problems,
        "left": [f"{p.pid} {command(p)[:200]}" for id in jobs for p in processes_of(id)],
    }


def observe_files(world: World) -> dict[str, Any]:
    """Return what is in the files of a server that has been stopped: the ledger, and problems of the whole directory."""
    with closing(sqlite3.connect(f"file:{world.layout.database}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        entries = connection.execute(
            "SELECT job_id, attempt_id, attempt, node, machine, slots, start_ms, end_ms, slot_ms FROM ledger ORDER BY seq"
        )
        ledger = [dict(row) for row in entries]
        open_ = connection.execute("SELECT count(*) FROM ledger_open").fetchone()[0]
    check = world.cli("server", "check", check=None)
    problems = [] if check.returncode == 0 else [check.stdout[-1000:] + check.stderr[-1000:]]
    return {"ledger": ledger, "ledger_open": open_, "check_problems": problems}


def _all_jobs(client: Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    before = None
    while page := client.jobs.list(limit=200, before=before):
        found += [job.model_dump(mode="json") for job in page]
        before = page[-1].id
    return found


def _job(client: Client, id: str) -> dict[str, Any]:
    view = client.jobs.get(id).model_dump(mode="json")
    lines = [line_key(x.attempt, x.node, x.rank, x.text) for x in client.jobs.lines(id) if x.rank is not None]
    has_loss = any(name.name == "loss" for name in client.metrics.names(id))
    points = client.metrics.read(id, ["loss"])["metrics"]["loss"] if has_loss else []
    return {
        "name": view["name"],
        "kind": view["kind"],
        "status": view["status"],
        "steps": int(view["spec"]["entry"][1]) if view["spec"]["entry"][0] == "count.py" else None,
        "ranks": view["spec"]["max_nodes"] * view["spec"]["accels"],
        "attempts": view["attempt_list"],
        "events": [{k: e[k] for k in ("seq", "at", "kind", "attempt")} for e in view["events"]],
        "lines": lines,
        "points": points,
        "slot_seconds": view["slot_seconds"],
    }


def _digest(client: Client, name: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        try:
            client.datasets.fetch(name, Path(folder) / "out")
        except ShoalError as error:
            return f"error: {error.message}"
        return hashlib.sha256((Path(folder) / "out" / "data.bin").read_bytes()).hexdigest()
