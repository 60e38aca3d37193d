"""The table of runs and its charts with 10,000 runs of 50 metrics, 50 of them with points and one with a million.

    python bench/console_runs.py [--runs 10000] [--metrics 50] [--points 1000000] [--requests 15] [--home DIR]

Each request is the one that the page sends, over loopback to a server of its own; printed are the median, the 95th percentile, and
the server's processor time, which stays true on a busy machine. `bench/console.py --runs` does the same after its own figures.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

import httpx
import psutil
from console_fill import LONG, Filler
from runs import fill as fill_runs
from sqlalchemy import select

from shoal.client.local import owner_key, running_server
from shoal.core.settings import Layout, ServerSettings
from shoal.core.states import JobState
from shoal.server.models.users import User
from shoal.server.models.workspaces import Workspace
from shoal.server.run import open_context
from shoal.testing.live import LiveServer
from shoal.testing.server import Person, make_context

API = "/api/v1/workspaces/default"
OVERLAID, STEPS, WARM = 50, 2_000, 2
COLUMNS = [("column", "lr"), ("column", "loss.min"), ("column", "acc.max")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--metrics", type=int, default=50)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=15)
    parser.add_argument("--home", type=Path, help="keep the filled server here")
    options = parser.parse_args()
    home = options.home or Path(tempfile.mkdtemp(prefix="shoal-bench-")) / "home"
    server = LiveServer(home)
    try:
        if not home.exists():
            home.mkdir(parents=True)
            fill(home, options.runs, options.metrics, options.points)
        server.start()
        for line in measure(server, options.requests, options.points):
            print(line, flush=True)
    finally:
        server.close()
        if options.home is None:
            shutil.rmtree(home.parent, ignore_errors=True)


def fill(home: Path, runs: int, metrics: int, points: int) -> None:
    open_context(Layout(home), ServerSettings(slots=4)).db.close()
    ctx = make_context(home)
    try:
        with ctx.db.read() as session:
            owner, workspace = session.scalars(select(User)).one(), session.scalars(select(Workspace)).one()
        fill_runs(ctx, Person(owner.id, owner.email, workspace.id, "", "key_none"), runs, metrics)
        filler = Filler(ctx, points, 0)
        for index in range(OVERLAID):
            filler.steps(filler.job(f"drawn-{index}", end=JobState.SUCCEEDED), 0, STEPS, ("loss", "acc", "lr"))
        filler.steps(filler.job(LONG, end=JobState.SUCCEEDED), 0, points, ("loss",))
    finally:
        ctx.db.close()


def measure(server: LiveServer, requests: int, points: int) -> list[str]:
    record = running_server(server.layout)
    assert record is not None, "the server is down"
    process = psutil.Process(record.pid)
    headers = {"Authorization": f"Bearer {owner_key(server.layout, record)}"}
    lines = [f"{'':<46}  p50 ms  p95 ms  CPU ms   limit      KB"]
    with httpx.Client(base_url=record.url, headers=headers, timeout=120) as client:
        for name, limit, path in questions(points):
            lines.append(timed(client, process, name, limit, path, requests))
    return lines


def questions(points: int) -> list[tuple[str, float, str]]:
    def query(**more: object) -> str:
        return f"{API}/runs/query?{urlencode([*COLUMNS, ('limit', 200), *more.items()])}"

    drawn = [("job", f"drawn-{index}") for index in range(OVERLAID)]
    line = {"name": "loss", "points": 400, "smoothing": 0.6}
    middle = {"from": points // 2, "to": points // 2 + 300}
    return [
        ("page of runs (HTML)", 500, "/w/default/runs"),
        ("first rows", 500, query()),
        ("rows 5,000 to 5,200", 150, query(offset=5_000)),
        ("sort by a metric", 150, query(sort="loss.min")),
        ("filter", 150, query(q="lr>1e-4 tag:ablation status:failed loss.min<2")),
        ("group by all but the seed", 150, query(group="-seed", sort="loss.min")),
        ("columns of the workspace", 500, f"{API}/runs/columns"),
        ("overlay of 50 runs", 200, f"{API}/metrics/query?{urlencode([*drawn, *line.items()])}"),
        ("mean of 50 runs", 200, f"{API}/metrics/query?{urlencode({'job': ','.join(n for _, n in drawn), **line})}"),
        ("chart of a million points", 100, f"{API}/metrics/query?{urlencode({'job': LONG, **line})}"),
        ("zoom into 300 of a million points", 100, f"{API}/metrics/query?{urlencode({'job': LONG, **line, **middle})}"),
    ]  # fmt: skip


def timed(client: httpx.Client, process: psutil.Process, name: str, limit: float, path: str, requests: int) -> str:
    took, size, before = [], 0, 0.0
    cpu: Callable[[], float] = lambda: float(sum(process.cpu_times()[:2]))  # noqa: E731
    for index in range(WARM + requests):
        before = cpu() if index == WARM else before
        start = time.perf_counter()
        answer = client.get(path)
        assert answer.status_code == 200, (path, answer.status_code, answer.text[:300])
        size = len(answer.content)
        if index >= WARM:
            took.append((time.perf_counter() - start) * 1000)
    p50, p95 = statistics.median(took), statistics.quantiles(took, n=20)[-1]
    each = (cpu() - before) * 1000 / requests
    told = "PASS" if p50 <= limit else "miss"
    return f"{name:<46}  {p50:6.1f}  {min(p95, max(took)):6.1f}  {each:6.1f}  {limit:6.0f}  {size / 1024:6.1f}  {told}"


if __name__ == "__main__":
    main()
