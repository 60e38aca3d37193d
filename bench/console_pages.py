"""Addresses that bench/console.py requests: every page of the console by its route, and the charts' data."""

from __future__ import annotations

import httpx
from console_fill import BIG, LONG, METRICS, ODD, SWEEP

W = "/w/default"
J = f"{W}/jobs/{BIG}"
NOT_PAGES = {"/static/{path:path}", "/favicon.ico", "/enter/{code}", "/account", "/w/{workspace}"}
"""Files, redirects, and a link that works once."""
ENDLESS = {"/live", "/w/{workspace}/jobs/{job}/logs/download"}
"""Endless responses, of which the time to the first byte is measured."""


def addresses(client: httpx.Client) -> dict[str, list[str]]:
    """Return the route of every page of the console, with the addresses to request."""
    hit = client.get(f"{J}/logs/search", params={"q": ODD[:20]}).json()
    while hit["more"] and not hit["hits"]:
        hit = client.get(f"{J}/logs/search", params={"q": ODD[:20], "after": hit["cursor"]}).json()
    place = hit["hits"][0]["at"]
    job = "/w/{workspace}/jobs/{job}"
    some = [f"run-{n:04}" for n in range(15, 80, 10)]
    return {
        "/sign-in": ["/sign-in"],
        "/sign-up": ["/sign-up"],
        "/": ["/"],
        "/workspaces": ["/workspaces"],
        "/w/{workspace}/members": [f"{W}/members"],
        "/w/{workspace}/jobs/new": [f"{W}/jobs/new", f"{W}/jobs/new?from={BIG}"],
        "/w/{workspace}/jobs": [f"{W}/jobs", f"{W}/jobs?status=failed", f"{W}/jobs?search=run-07"],
        f"{job}/logs": [f"{J}/logs"],
        f"{job}/logs/lines": [
            f"{J}/logs/lines", f"{J}/logs/lines?rank=3", f"{J}/logs/lines?around={place}", f"{J}/logs/lines?before={place}",
            f"{J}/logs/lines?after=0",
        ],
        f"{job}/logs/search": [f"{J}/logs/search?q={q}" for q in ("loss", "needle", "no+such+thing", "ü", "out")],
        f"{job}/logs/first-error": [f"{J}/logs/first-error"],
        f"{job}/logs/download": [f"{J}/logs/download"],
        f"{job}/code": [f"{J}/code", f"{J}/code?file=model/net.py"],
        f"{job}/code/picture": [f"{J}/code/picture?file=a.png"],
        f"{job}/code/download": [f"{J}/code/download?file=train.py"],
        f"{job}/code/archive": [f"{J}/code/archive"],
        f"{job}/figures": [f"{J}/figures"],
        f"{job}/figures/one": [f"{J}/figures/one?name=table+0&type=table"],
        job: [J, f"{J}?part=head"],
        f"{job}/metrics": [f"{J}/metrics", f"{J}/metrics.json"],
        f"{job}/checkpoints": [f"{J}/checkpoints"],
        f"{job}/system": [f"{J}/system", f"{J}/system.json"],
        "/w/{workspace}/checkpoints": [f"{W}/checkpoints"],
        "/w/{workspace}/compare": [f"{W}/compare?jobs={BIG},{LONG}", f"{W}/compare?jobs={','.join([BIG, *some])}"],
        "/w/{workspace}/sweeps": [f"{W}/sweeps"],
        "/w/{workspace}/sweeps/new": [f"{W}/sweeps/new", f"{W}/sweeps/new?job={BIG}"],
        "/w/{workspace}/sweeps/{sweep}": [f"{W}/sweeps/{SWEEP}{end}" for end in ("", ".json", "?order=result", "?order=result&after=17&part=trials")],
        "/w/{workspace}/datasets": [f"{W}/datasets"],
        "/w/{workspace}/datasets/{dataset}": [
            f"{W}/datasets/data-00", f"{W}/datasets/data-00?folder=part-001",
            f"{W}/datasets/data-00?file=part-001/00100.csv",
        ],
        "/w/{workspace}/datasets/{dataset}/picture": [],
        "/w/{workspace}/datasets/{dataset}/download": [f"{W}/datasets/data-00/download?file=part-001/00100.csv"],
        "/w/{workspace}/secrets": [f"{W}/secrets"],
        "/keys": ["/keys"],
        "/machines": ["/machines"],
        "/queue": ["/queue"],
        "/usage": ["/usage"],
        "/live": ["/live"],
        "/settings": ["/settings"],
        "/admin": ["/admin"],
        "/admin/limits": ["/admin/limits"],
        "/admin/quotas": ["/admin/quotas"],
    }  # fmt: skip


def charts() -> list[str]:
    api = "/api/v1/workspaces/default/jobs"
    all_of_them = "&".join(f"name={name}" for name in METRICS)
    return [
        *(f"{api}/{BIG}/metrics?points=800&ghosts=true&axis={axis}&{all_of_them}" for axis in ("step", "relative", "time")),
        f"{api}/{LONG}/metrics?points=800&ghosts=true&axis=step&name=loss",
        f"{api}/{BIG}/metric-names",
    ]  # fmt: skip
