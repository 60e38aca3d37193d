"""Shares of machines, rented by SSH."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from shoal.core.durations import duration
from shoal.core.leases import LeaseAsk, LeaseExtend, LeaseStatus
from shoal.core.people import GitFetch
from shoal.server.context import Context, Ctx
from shoal.server.policy import Access, Reader, Viewer, Worker
from shoal.server.services import datasets, git, leases, snapshots, sources
from shoal.server.services.lease_clock import NOTICE_S
from shoal.server.web.forms import Fields, Form, done, parse
from shoal.server.web.nav import base_path
from shoal.server.web.render import page

router = APIRouter(prefix="/w/{workspace}/leases")
everywhere = APIRouter()


@router.get("")
def list_leases(ctx: Ctx, request: Request, access: Viewer) -> Response:
    """Leases, how to reach them, and what those that ended have left behind."""
    found = leases.list_leases(ctx, access, host=request.url.hostname or "")
    data = {
        "leases": [lease for lease in found if lease.status is not LeaseStatus.ENDED],
        "ended": [lease for lease in found if lease.status is LeaseStatus.ENDED],
        "snapshots": snapshots.list_snapshots(ctx, access),
        "datasets": [d.name for d in datasets.list_datasets(ctx, access) if d.status == "available"],
        "git_sources": [source.name for source in git.list_git_sources(ctx, access)],
        "near_s": NOTICE_S,
        "passwords": ctx.settings.ssh_passwords,
        "problem": ctx.gateway.problem if ctx.gateway.is_installed() else "pip install 'shoal[machines]' on the server",
    }
    return page(request, ctx, access, "leases.html", data, part="_leases.html")


@everywhere.get("/leases/ending")
def ending(ctx: Ctx, request: Request, principal: Reader) -> Response:
    """Leases of one's own that end within the hour: what every page says at its top."""
    data = {"ending": leases.list_ending(ctx, principal, within_s=NOTICE_S)}
    return page(request, ctx, principal, "leases_ending.html", data, part="_ending.html")


@router.post("")
def rent(ctx: Ctx, request: Request, access: Worker, form: Fields) -> Response:
    """Ask for one; a password is shown this once."""
    given = {name: form[name].strip() for name in ("name", "restore") if form.get(name, "").strip()}
    keys = [line.strip() for line in form.get("ssh_keys", "").splitlines() if line.strip()]
    ask = parse(
        LeaseAsk,
        accels=form.get("accels") or 1,
        device=form.get("device") or "auto",
        time_s=form.get("time_s") or LeaseAsk.model_fields["time_s"].default,
        datasets=form.all("dataset"),
        source_id=_source(ctx, access, form),
        ssh_keys=keys,
        password="password" in form,
        **given,
    )
    made = leases.rent(ctx, access, ask, host=request.url.hostname or "")
    return page(request, ctx, access, "lease_created.html", {"lease": made}, part="_lease_created.html", status=201)


def _source(ctx: Context, access: Access, form: Form) -> str | None:
    """Of a repository: by its URL, or as it was named with `shoal source add`."""
    told = {"url": "repository_url", "source_name": "source_name", "revision": "repository_revision"}
    given = {field: form[name].strip() for field, name in told.items() if form.get(name, "").strip()}
    if not given:
        return None
    return sources.from_git(ctx, access, parse(GitFetch, **given)).id


@router.post("/{lease}/extend")
def extend(ctx: Ctx, request: Request, access: Worker, lease: str, form: Fields) -> Response:
    """More time."""
    made = leases.extend(ctx, access, lease, parse(LeaseExtend, time_s=form.get("time_s") or 0))
    return done(request, f"{made.name} ends in {duration(made.left_s or 0.0)}.", f"{base_path(access)}/leases")


@router.post("/{lease}/release")
def release(ctx: Ctx, request: Request, access: Worker, lease: str) -> Response:
    """End it now."""
    made = leases.release(ctx, access, lease)
    return done(request, f"{made.name} was released.", f"{base_path(access)}/leases")


@router.post("/{lease}/restart")
def restart(ctx: Ctx, request: Request, access: Worker, lease: str) -> Response:
    """Start one again that went offline."""
    made = leases.restart(ctx, access, lease)
    return done(request, f"{made.name} is starting again.", f"{base_path(access)}/leases")


@router.post("/snapshots/{snapshot}/delete")
def delete_snapshot(ctx: Ctx, request: Request, access: Worker, snapshot: str) -> Response:
    """Remove one before its time."""
    snapshots.delete(ctx, access, snapshot)
    return done(request, "The snapshot is gone.", f"{base_path(access)}/leases")
