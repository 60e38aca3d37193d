"""Machines, the queue, and usage."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from shoal.core.pool import OWN_MACHINE, PoolAdd, parse_gpus, parse_target
from shoal.server.context import Ctx
from shoal.server.policy import Admin, Reader
from shoal.server.pool import service as pool
from shoal.server.web import overview
from shoal.server.web.forms import Fields, done, parse
from shoal.server.web.render import page

router = APIRouter()


@router.get("/machines")
def machines(ctx: Ctx, request: Request, principal: Reader) -> Response:
    """Show the pool's machines, their slots, and the jobs on them."""
    seen = overview.pool(ctx, principal)
    names = {machine.name for machine in seen.pool.machines}
    known = pool.list_machines(ctx) if principal.is_admin else []
    if principal.is_admin and OWN_MACHINE in names:
        known.append(pool.get(ctx, OWN_MACHINE))
    data = dict(seen) | {
        "members": {machine.name: machine for machine in known if machine.name in names},
        "pending": [machine for machine in known if machine.name not in names],
    }
    return page(request, ctx, principal, "machines.html", data, part="_machines.html")


@router.post("/machines")
def add_machine(ctx: Ctx, request: Request, _: Admin, form: Fields) -> Response:
    """Start adding a machine by SSH."""
    user, host = parse_target(form.get("target", "").strip())
    gpus = form.get("gpus", "").strip()
    given = {name: form[name].strip() for name in ("name", "slots", "port") if form.get(name, "").strip()}
    asked = parse(PoolAdd, user=user, host=host, gpus=parse_gpus(gpus) if gpus else None, **given)
    made = pool.add(ctx, asked)
    return done(request, f"{made.name} is being added.", "/machines")


@router.post("/machines/{machine}/drain")
def drain(ctx: Ctx, request: Request, _: Admin, machine: str) -> Response:
    """Drain a machine: no new jobs start on it."""
    made = pool.drain(ctx, machine, draining=True)
    return done(request, f"{made.name} is draining: no new jobs start on it.", "/machines")


@router.post("/machines/{machine}/undrain")
def undrain(ctx: Ctx, request: Request, _: Admin, machine: str) -> Response:
    """Return a drained machine to service."""
    made = pool.drain(ctx, machine, draining=False)
    return done(request, f"{made.name} is in service again.", "/machines")


@router.post("/machines/{machine}/remove")
def remove(ctx: Ctx, request: Request, _: Admin, machine: str) -> Response:
    """Remove a machine from the pool and stop everything the pool runs on it."""
    name = pool.get(ctx, machine).name
    pool.remove(ctx, machine, force=False)
    return done(request, f"{name} was removed from the pool.", "/machines")


@router.get("/queue")
def queue(ctx: Ctx, request: Request, principal: Reader) -> Response:
    """Show the waiting jobs in queue order, with the reason why each waits."""
    return page(request, ctx, principal, "queue.html", {"queue": overview.queue(ctx, principal)}, part="_queue.html")


@router.get("/usage")
def usage(ctx: Ctx, request: Request, principal: Reader) -> Response:
    """Show slot time and stored bytes by workspace; for admins also the whole store."""
    data = dict(overview.usage(ctx, principal)) | {"store": overview.store(ctx) if principal.is_admin else None}
    return page(request, ctx, principal, "usage.html", data)
