"""Every page of the console, with an address of the filled server. A page that is not here fails `test_every_page_is_looked_at`."""

from __future__ import annotations

from filled import Filled

from shoal.server.policy import routes_of
from shoal.server.web.app import build

_JOB = "/w/{workspace}/jobs/{job}"
NO_PAGES = {
    "/static/{path:path}", "/favicon.ico", "/enter/{code}", "/account", "/w/{workspace}", "/live",
    f"{_JOB}/logs/lines", f"{_JOB}/logs/search", f"{_JOB}/logs/first-error", f"{_JOB}/logs/download",
    f"{_JOB}/code/picture", f"{_JOB}/code/download", f"{_JOB}/code/archive",
    "/w/{workspace}/datasets/{dataset}/picture", "/w/{workspace}/datasets/{dataset}/download",
    "/simple", "/simple/", "/simple/{project}", "/simple/{project}/", "/simple/{project}/{name}",
    "/w/{workspace}/jobs/new/preflight/{preflight}", "/leases/ending", "/install.py", f"{_JOB}/jupyter", "/w/{workspace}/uploads/{upload}",
    "/sign-in/with/{service}", "/sign-in/callback/{service}", "/settings/connect/{service}",
}  # fmt: skip
"""Files, streams, redirects and what scripts ask for."""


def routes() -> set[str]:
    return {route.path for route in routes_of(build()) if "GET" in (route.methods or ())} - NO_PAGES


def pages(filled: Filled) -> dict[str, tuple[str, str]]:
    """Name → (route, address)."""
    w = "/w/default"
    return {
        "home": ("/", "/"),
        "workspaces": ("/workspaces", "/workspaces"),
        "members": ("/w/{workspace}/members", f"{w}/members"),
        "runs": ("/w/{workspace}/runs", f"{w}/runs?column=lr&column=train/loss.min"),
        "runs-groups": ("/w/{workspace}/runs", f"{w}/runs?group=-seed&column=train/loss.min"),
        "jobs": ("/w/{workspace}/jobs", f"{w}/jobs"),
        "jobs-none": ("/w/{workspace}/jobs", f"{w}/jobs?search=nothing"),
        "new-job": ("/w/{workspace}/jobs/new", f"{w}/jobs/new"),
        "new-job-clone": ("/w/{workspace}/jobs/new", f"{w}/jobs/new?from=baseline"),
        "job": (_JOB, f"{w}/jobs/baseline"),
        "job-failed": (_JOB, f"{w}/jobs/wider"),
        "job-queued": (_JOB, f"{w}/jobs/waits"),
        "job-metrics": (f"{_JOB}/metrics", f"{w}/jobs/longer/metrics"),
        "job-logs": (f"{_JOB}/logs", f"{w}/jobs/baseline/logs"),
        "job-checkpoints": (f"{_JOB}/checkpoints", f"{w}/jobs/baseline/checkpoints"),
        "job-figures": (f"{_JOB}/figures", f"{w}/jobs/baseline/figures"),
        "figure": (f"{_JOB}/figures/one", f"{w}/jobs/baseline/figures/one?name=samples&type=image"),
        "job-code": (f"{_JOB}/code", f"{w}/jobs/baseline/code?file=train.py"),
        "job-system": (f"{_JOB}/system", f"{w}/jobs/baseline/system"),
        "compare": ("/w/{workspace}/compare", f"{w}/compare?jobs=baseline,wider,longer"),
        "diff": ("/w/{workspace}/compare", f"{w}/compare?jobs=baseline,wider&part=diff"),
        "sweeps": ("/w/{workspace}/sweeps", f"{w}/sweeps"),
        "sweep": ("/w/{workspace}/sweeps/{sweep}", f"{w}/sweeps/lr-and-width?order=result"),
        "new-sweep": ("/w/{workspace}/sweeps/new", f"{w}/sweeps/new?job=baseline"),
        "join": ("/join/{token}", f"/join/{filled.join}"),
        "invite": ("/invite/{code}", filled.invite),
        "new-swarm": ("/w/{workspace}/swarms/new", f"{w}/swarms/new"),
        "swarms": ("/w/{workspace}/swarms", f"{w}/swarms"),
        "swarm": ("/w/{workspace}/swarms/{swarm}", f"{w}/swarms/reef"),
        "checkpoints": ("/w/{workspace}/checkpoints", f"{w}/checkpoints"),
        "datasets": ("/w/{workspace}/datasets", f"{w}/datasets"),
        "dataset": ("/w/{workspace}/datasets/{dataset}", f"{w}/datasets/words?file=train.csv"),
        "dataset-picture": ("/w/{workspace}/datasets/{dataset}", f"{w}/datasets/words?file=digits/one.png"),
        "leases": ("/w/{workspace}/leases", f"{w}/leases"),
        "notifications": ("/w/{workspace}/notifications", f"{w}/notifications"),
        "notices": ("/notices", "/notices"),
        "secrets": ("/w/{workspace}/secrets", f"{w}/secrets"),
        "keys": ("/keys", "/keys"),
        "machines": ("/machines", "/machines"),
        "queue": ("/queue", "/queue"),
        "usage": ("/usage", "/usage"),
        "settings": ("/settings", "/settings"),
        "terminal": ("/settings/terminal", "/settings/terminal"),
        "verify-address": ("/settings/verify/{code}", "/settings/verify/shoalr_some-code"),
        "password-lost": ("/password-lost", "/password-lost"),
        "recover": ("/recover/{code}", filled.recover),
        "admin": ("/admin", "/admin"),
        "admin-limits": ("/admin/limits", "/admin/limits"),
        "admin-quotas": ("/admin/quotas", "/admin/quotas"),
        "admin-health": ("/admin/health", "/admin/health"),
        "admin-audit": ("/admin/audit", "/admin/audit"),
        "not-found": ("/", "/w/default/jobs/nothing"),
        "sign-in": ("/sign-in", "/sign-in"),
        "sign-up": ("/sign-up", "/sign-up"),
    }


def settled(page: object, address: str) -> None:
    """The page, with its charts drawn and its log shown."""
    page.goto(address)  # type: ignore[attr-defined]
    for place, shown in (
        (
            ":not([hidden]) > #charts",
            ".chart canvas, #no-metrics:not([hidden]), #no-samples:not([hidden]), #no-rounds:not([hidden])",
        ),
        ("#main-charts:not([hidden])", "#main-charts canvas"),
        ("#log", "#log > *"),
        ("#plots", "#parallel .axis-name, #no-results:not([hidden])"),
    ):
        if page.locator(place).count():  # type: ignore[attr-defined]
            page.locator(shown).first.wait_for()  # type: ignore[attr-defined]
    page.wait_for_load_state("load")  # type: ignore[attr-defined]
