"""The console with 1,000 jobs, one of them with a million metric points and a million log lines: server time of every page
and fragment, chart data, log search; first paint in Chromium; JavaScript per page. `--runs` adds console_runs.py: 10,000 runs.

    python bench/console.py [--jobs 1000] [--points 1000000] [--lines 1000000] [--requests 50] [--home DIR] [--json]

Each address is asked for over loopback by one client, a few times to warm up and then `--requests` times, one after the other;
what the client itself takes is part of the figure. A search of the whole log takes several requests: both each and all are told.
With --home the filled server is kept there and used again.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
from console_fill import BIG, LONG, fill
from console_pages import ENDLESS, NOT_PAGES, J, W, addresses, charts

from shoal.client.local import owner_key, running_server
from shoal.server.policy import routes_of
from shoal.server.web.app import build
from shoal.testing.live import LiveServer

PAGE_MS, CHART_MS, PAINT_MS, JS_KB = 200, 100, 300, 200
WARM = 3
PAINTED = """() => new Promise((told) => {
    const see = (list) => { for (const e of list.getEntries()) if (e.name === "first-contentful-paint") told(e.startTime); };
    new PerformanceObserver(see).observe({ type: "paint", buffered: true });
})"""


@dataclass(frozen=True, slots=True)
class Figure:
    what: str
    p50_ms: float
    p95_ms: float
    cpu_ms: float
    """Processor time of the server per request, which other load on the machine changes least."""
    limit_ms: float
    kb: float

    @property
    def passed(self) -> bool:
        return self.p95_ms <= self.limit_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=50, help="of each address")
    parser.add_argument("--only", default="", help="addresses that hold this")
    parser.add_argument("--home", type=Path, help="keep the filled server here")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runs", action="store_true", help="also the table of runs with 10,000 of them")
    options = parser.parse_args()
    with filled(options) as server, client_of(server) as client:
        figures = []
        for figure in measure(server, client, options.requests, options.only):
            print(figure.what, figure.p50_ms, figure.p95_ms, figure.cpu_ms, file=sys.stderr)
            figures.append(figure)
        others = {} if options.only else searches(client) | weights(client) | paints(client)
    if options.json:
        print(json.dumps({"figures": [asdict(f) for f in figures], "others": others}, indent=2))
    else:
        print(table(figures, others))
    if options.runs:
        subprocess.run([sys.executable, str(Path(__file__).with_name("console_runs.py"))], check=True)


@contextmanager
def filled(options: argparse.Namespace) -> Iterator[LiveServer]:
    home = options.home or Path(tempfile.mkdtemp(prefix="shoal-bench-")) / "home"
    server = LiveServer(home)
    try:
        if not home.exists():
            start = time.perf_counter()
            home.mkdir(parents=True)
            fill(home, num_jobs=options.jobs, points=options.points, lines=options.lines)
            print(f"filled in {time.perf_counter() - start:.0f} s")
        yield server.start()
    finally:
        server.close()
        if options.home is None:
            shutil.rmtree(home.parent, ignore_errors=True)


@contextmanager
def client_of(server: LiveServer) -> Iterator[httpx.Client]:
    record = running_server(server.layout)
    assert record is not None, "the server is down"
    headers = {"Authorization": f"Bearer {owner_key(server.layout, record)}", "Accept": "text/html"}
    with httpx.Client(base_url=record.url, headers=headers, timeout=60) as client:
        yield client


def measure(server: LiveServer, client: httpx.Client, requests: int, only: str) -> Iterator[Figure]:
    known, cpu_s = addresses(client), cpu_of(server)
    routes = {route.path for route in routes_of(build()) if "GET" in (route.methods or ())}
    assert routes - NOT_PAGES == known.keys(), f"not measured: {routes - NOT_PAGES ^ known.keys()}"
    parts = {"HX-Request": "true"}
    for route, paths in known.items():
        for path in paths:
            if only not in path:
                continue
            ask = first_byte if route in ENDLESS else whole
            yield timed(path, partial(ask, client, path, {}), requests, PAGE_MS, cpu_s)
            if ask is whole and is_page(client, path):
                yield timed(f"{path} (part)", partial(whole, client, path, parts), requests, PAGE_MS, cpu_s)
    for path in charts():
        if only in path:
            yield timed(path, partial(whole, client, path, {}), requests, CHART_MS, cpu_s)
    share = f"/api/v1/workspaces/default/jobs/{BIG}/share"
    if only in share:
        yield timed(share, partial(whole, client, share, {}), requests, PAGE_MS, cpu_s)


def cpu_of(server: LiveServer) -> Callable[[], float]:
    record = running_server(server.layout)
    assert record is not None, "the server is down"
    process = psutil.Process(record.pid)
    return lambda: float(sum(process.cpu_times()[:2]))


def is_page(client: httpx.Client, path: str) -> bool:
    return "text/html" in client.get(path).headers["content-type"] and not path.startswith("/sign")


def whole(client: httpx.Client, path: str, headers: dict[str, str]) -> int:
    answer = client.get(path, headers=headers)
    assert answer.status_code == 200, (path, answer.status_code, answer.text[:500])
    return len(answer.content)


def first_byte(client: httpx.Client, path: str, headers: dict[str, str]) -> int:
    with client.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200, (path, answer.status_code)
        return len(next(answer.iter_raw()))


def timed(what: str, ask: Callable[[], int], requests: int, limit_ms: float, cpu_s: Callable[[], float]) -> Figure:
    size, took, before = 0, [], 0.0
    for index in range(WARM + requests):
        before = cpu_s() if index == WARM else before
        start = time.perf_counter()
        size = ask()
        if index >= WARM:
            took.append((time.perf_counter() - start) * 1000)
    cpu = (cpu_s() - before) * 1000 / requests
    p95 = statistics.quantiles(took, n=20)[-1] if len(took) > 1 else took[0]
    return Figure(
        what,
        round(statistics.median(took), 1),
        round(min(p95, max(took)), 1),
        round(cpu, 1),
        limit_ms,
        round(size / 1024, 1),
    )


def searches(client: httpx.Client) -> dict[str, str]:
    """Through all of a million lines, as the page does it."""
    found = {}
    for what, path in (
        ("search of the whole log", f"{J}/logs/search?q=no+such+thing"),
        ("first error", f"{J}/logs/first-error?q="),
    ):
        start, asked, after, more = time.perf_counter(), 0, 0, True
        while more:
            page = client.get(f"{path}&after={after}").json()
            asked, after, more = asked + 1, page["cursor"], page["more"] and not page["hits"]
        found[what] = f"{(time.perf_counter() - start) * 1000:.0f} ms in {asked} requests"
    return found


def weights(client: httpx.Client) -> dict[str, str]:
    """JavaScript of the heaviest page, with all that its modules import."""

    def of(path: str, seen: set[str]) -> int:
        if path in seen:
            return 0
        seen.add(path)
        text = client.get(path).text
        folder = path.partition("?")[0].rpartition("/")[0]
        inner = re.findall(r'^import[^"]*"\./([\w.]+)"', text, flags=re.MULTILINE)
        return len(text.encode()) + sum(of(f"{folder}/{name}", seen) for name in inner)

    found = {}
    for path in (
        J,
        f"{J}/metrics",
        f"{J}/logs",
        f"{J}/figures",
        f"{W}/compare?jobs={BIG},{LONG}",
        f"{W}/jobs/new",
        f"{W}/jobs",
    ):
        scripts = re.findall(r'<script[^>]* src="([^"]+)"', client.get(path).text)
        seen: set[str] = set()
        found[path] = sum(of(script, seen) for script in scripts) / 1024
    heaviest = max(found, key=lambda path: found[path])
    passed = "PASS" if found[heaviest] <= JS_KB else "miss"
    return {"most JavaScript": f"{found[heaviest]:.0f} KB ({heaviest}) of {JS_KB} KB: {passed}"}


def paints(client: httpx.Client) -> dict[str, str]:
    """First paint with an empty cache, the median of five."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return {"first paint": "not measured: needs playwright"}
    found = {}
    with sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for address in ("/", f"{W}/jobs", J, f"{J}/logs", f"{J}/metrics"):
            median = statistics.median(first_paint(browser, client, address) for _ in range(5))
            found[f"first paint of {address}"] = f"{median:.0f} ms: {'PASS' if median < PAINT_MS else 'miss'}"
        browser.close()
    return found


def first_paint(browser: Any, client: httpx.Client, address: str) -> float:
    # Chromium sends the key to our own server only; no other is asked.
    context = browser.new_context(extra_http_headers={"Authorization": client.headers["Authorization"]})
    try:
        page = context.new_page()
        page.goto(str(client.base_url).rstrip("/") + address)
        return float(page.evaluate(PAINTED))
    finally:
        context.close()


def table(figures: list[Figure], others: dict[str, str]) -> str:
    width = max(len(f.what) for f in figures)
    lines = [f"{'':<{width}}  p50 ms  p95 ms  CPU ms   limit      KB"]
    for f in figures:
        told = "PASS" if f.passed else "miss"
        lines.append(
            f"{f.what:<{width}}  {f.p50_ms:6.1f}  {f.p95_ms:6.1f}  {f.cpu_ms:6.1f}  {f.limit_ms:6.0f}  {f.kb:6.1f}  {told}"
        )
    lines += [f"{name}: {value}" for name, value in others.items()]
    missed = [f.what for f in figures if not f.passed]
    lines.append(f"{len(figures) - len(missed)} of {len(figures)} within their limits")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
