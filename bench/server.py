"""Load on a server: 100 reads per second of lists and job pages, 200 followers of a job that talks, 10,000 metric names.

    python bench/server.py [--jobs 2000] [--followers 200] [--seconds 20]

Reads are sent when they are due, whether or not earlier ones were answered, so a server that falls behind shows in the times. CPU is
that of the server's process, in percent of one core.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import httpx
from console import cpu_of
from console_fill import fill

from shoal.client.local import owner_key, running_server
from shoal.testing.live import LiveServer
from shoal.testing.patience import wait_until

TALKS = """
import time, shoal
run = shoal.init()
run.step(**{{f"m/{{number:05}}": float(number) for number in range({names})}})
for number in range(10**9):
    print(f"line {{number}} " + "x" * 80, flush=True)
    time.sleep(0.05)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--followers", type=int, default=200)
    parser.add_argument("--names", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=100.0, help="reads per second")
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        server = LiveServer(Path(folder) / "home", slots=1, warm=False)
        server.layout.root.mkdir(parents=True, exist_ok=True)
        fill(server.layout.root, num_jobs=options.jobs, points=10_000, lines=10_000)
        code = Path(folder) / "code"
        code.mkdir()
        (code / "talk.py").write_text(TALKS.format(names=options.names))
        try:
            server.start()
            server.cli("training", "run", "talks", "--dir", str(code), "--", "talk.py")
            asyncio.run(load(server, options))
        finally:
            server.close()


async def load(server: LiveServer, options: argparse.Namespace) -> None:
    record = running_server(server.layout)
    assert record is not None, "the server is down"
    headers = {"Authorization": f"Bearer {owner_key(server.layout, record)}"}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    cpu_s = cpu_of(server)
    async with httpx.AsyncClient(base_url=record.url, headers=headers, timeout=60, limits=limits) as client:
        names = f"{API}/jobs/talks/metric-names"
        with httpx.Client(base_url=record.url, headers=headers, timeout=60) as plain:
            wait_until(lambda: len(plain.get(names).json()) >= options.names, "the names of all metrics", limit_s=120)
        await at_rate(client, f"metric names, {options.names:,}", [names], 2.0, 5.0, cpu_s)
        reads = [f"{API}/jobs", f"{API}/jobs/talks", f"{API}/sweeps", f"{API}/datasets"]
        await at_rate(client, f"lists and jobs, {options.jobs:,} jobs", reads, options.rate, options.seconds, cpu_s)
        pages = ["/w/default/jobs", "/w/default/jobs/talks"]
        await at_rate(client, "pages of the console", pages, options.rate / 2, options.seconds, cpu_s)
        heard = [0] * options.followers
        tasks = [asyncio.create_task(follow(client, heard, number)) for number in range(options.followers)]
        while not all(heard):
            await asyncio.sleep(0.1)
        before, began, lines = cpu_s(), time.perf_counter(), sum(heard)
        await asyncio.sleep(options.seconds)
        share = 100 * (cpu_s() - before) / (time.perf_counter() - began)
        print(
            f"{f'followers, {options.followers}':<32} {share:5.1f} % CPU, {(sum(heard) - lines) / options.seconds:,.0f} lines/s received"
        )
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


API = "/api/v1/workspaces/default"


async def follow(client: httpx.AsyncClient, heard: list[int], number: int) -> None:
    async with client.stream("GET", f"{API}/jobs/talks/follow") as answer:
        async for line in answer.aiter_lines():
            heard[number] += line.startswith("event: log")


async def at_rate(client: httpx.AsyncClient, what: str, paths: list[str], rate: float, seconds: float, cpu_s) -> None:
    took: list[float] = []

    async def one(path: str, due: float) -> None:
        answer = await client.get(path)
        assert answer.status_code == 200, (path, answer.status_code, answer.text[:300])
        took.append(time.perf_counter() - due)

    for path in paths:
        await one(path, time.perf_counter())
    took.clear()
    before, began, tasks = cpu_s(), time.perf_counter(), []
    for number in range(int(rate * seconds)):
        due = began + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(paths[number % len(paths)], due)))
    await asyncio.gather(*tasks)
    elapsed, cpu = time.perf_counter() - began, cpu_s() - before
    p99 = statistics.quantiles(took, n=100)[98] * 1000
    print(
        f"{what:<32} {len(took) / elapsed:5.1f}/s, p50 {statistics.median(took) * 1000:.0f} ms, p99 {p99:.0f} ms, "
        f"{1000 * cpu / len(took):.1f} ms CPU each, {100 * cpu / elapsed:.0f} % CPU"
    )


if __name__ == "__main__":
    main()
