"""Leases: machine shares that users rent and reach by SSH."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from shoal.core.durations import duration
from shoal.core.leases import LeaseExtend, LeaseRequest, LeaseStatus
from shoal.core.people import GitFetch
from shoal.server.artifacts import datasets, sources
from shoal.server.context import Context, Ctx
from shoal.server.git import service as git
from shoal.server.leases import service as leases
from shoal.server.leases import snapshots
from shoal.server.leases.clock import NOTICE_S
from shoal.server.policy import Access, Reader, Viewer, Worker
from shoal.server.pool import machines
from shoal.server.web import offers
from shoal.server.web.forms import Fields, Form, done, parse
from shoal.server.web.nav import base_path
from shoal.server.web.render import page

router = APIRouter(prefix="/w/{workspace}/leases")
everywhere = APIRouter()


@router.get("")
def list_leases(ctx: Ctx, request: Request, access: Viewer, part: Literal["", "offers"] = "") -> Response:
    """Show what can be rented, leases, how to connect to them, and the snapshots of those that ended."""
    offered = offers.offers(ctx.settings, machines.capacity(ctx))
    found = leases.list_leases(ctx, access, host=request.url.hostname or "")
    data = {
        "leases": [lease for lease in found if lease.status is not LeaseStatus.ENDED],
        "ended": [lease for lease in found if lease.status is LeaseStatus.ENDED],
        "snapshots": snapshots.list_snapshots(ctx, access),
        "datasets": [d.name for d in datasets.list_datasets(ctx, access) if d.status == "available"],
        "git_sources": [source.name for source in git.list_git_sources(ctx, access)],
        "near_s": NOTICE_S,
        "offers": offered,
        "currency": ctx.settings.currency,
        "highest": max((offer.price for offer in offered), default=0.0),
        "passwords": ctx.settings.ssh_passwords,
        "problem": ctx.gateway.problem
        if ctx.gateway.is_installed()
        else "pip install 'shoal-train[machines]' on the server",
    }
    return page(request, ctx, access, "leases.html", data, part="_offers.html" if part else "_leases.html")


@everywhere.get("/leases/ending")
def ending(ctx: Ctx, request: Request, principal: Reader) -> Response:
    """Show the user's leases that end soon; every page shows this at its top."""
    data = {"ending": leases.list_ending(ctx, principal, within_s=NOTICE_S)}
    return page(request, ctx, principal, "leases_ending.html", data, part="_ending.html")


@router.post("")
def rent(ctx: Ctx, request: Request, access: Worker, form: Fields) -> Response:
    """Rent a machine share. A password, if requested, is shown once."""
    given = {name: form[name].strip() for name in ("name", "restore") if form.get(name, "").strip()}
    keys = [line.strip() for line in form.get("ssh_keys", "").splitlines() if line.strip()]
    ask = parse(
        LeaseRequest,
        accels=form.get("accels") or 1,
        time_s=form.get("time_s") or LeaseRequest.model_fields["time_s"].default,
        datasets=form.all("dataset"),
        source_id=_source(ctx, access, form),
        ssh_keys=keys,
        password="password" in form,
        **given,
        **offers.requirements(form.get("device", "")),
    )
    made = leases.rent(ctx, access, ask, host=request.url.hostname or "")
    return page(request, ctx, access, "lease_created.html", {"lease": made}, part="_lease_created.html", status=201)


def _source(ctx: Context, access: Access, form: Form) -> str | None:
    """Return the id of a source fetched from a repository, by its URL or its name (`shoal source add`); None without one."""
    fields = {"url": "repository_url", "source_name": "source_name", "revision": "repository_revision"}
    given = {field: form[name].strip() for field, name in fields.items() if form.get(name, "").strip()}
    if not given:
        return None
    return sources.from_git(ctx, access, parse(GitFetch, **given)).id


@router.post("/{lease}/extend")
def extend(ctx: Ctx, request: Request, access: Worker, lease: str, form: Fields) -> Response:
    """Extend a lease."""
    made = leases.extend(ctx, access, lease, parse(LeaseExtend, time_s=form.get("time_s") or 0))
    return done(request, f"{made.name} ends in {duration(made.left_s or 0.0)}.", f"{base_path(access)}/leases")


@router.post("/{lease}/release")
def release(ctx: Ctx, request: Request, access: Worker, lease: str) -> Response:
    """End a lease now."""
    made = leases.release(ctx, access, lease)
    return done(request, f"{made.name} was released.", f"{base_path(access)}/leases")


@router.post("/{lease}/restart")
def restart(ctx: Ctx, request: Request, access: Worker, lease: str) -> Response:
    """Restart a lease that went offline."""
    made = leases.restart(ctx, access, lease)
    return done(request, f"{made.name} is restarting.", f"{base_path(access)}/leases")


@router.post("/snapshots/{snapshot}/delete")
def delete_snapshot(ctx: Ctx, request: Request, access: Worker, snapshot: str) -> Response:
    """Delete a snapshot before it expires."""
    snapshots.delete(ctx, access, snapshot)
    return done(request, "Snapshot deleted.", f"{base_path(access)}/leases")
