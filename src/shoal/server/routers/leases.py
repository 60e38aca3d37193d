"""Leases: machine shares that users rent and reach by SSH."""

from __future__ import annotations

from fastapi import Request

from shoal.core.leases import Certificate, CertificateRequest, LeaseCreated, LeaseExtend, LeaseRequest, LeaseView
from shoal.server.context import Ctx
from shoal.server.leases import service as leases
from shoal.server.policy import Viewer, Worker
from shoal.server.routers import api_router

router = api_router("/workspaces/{workspace}/leases", tags=["leases"])


@router.post("", status_code=201)
def rent(ctx: Ctx, access: Worker, ask: LeaseRequest, request: Request) -> LeaseCreated:
    """Rent a share of a machine. Like a job, it waits in the queue until slots are free. If a password is requested, it is
    contained in this reply only."""
    return leases.rent(ctx, access, ask, host=request.url.hostname or "")


@router.get("")
def list_leases(ctx: Ctx, access: Viewer, request: Request, ended: bool = False) -> list[LeaseView]:
    """List the leases of the workspace, newest first. Leases that ended more than a day ago are included only with
    `ended`."""
    return leases.list_leases(ctx, access, ended=ended, host=request.url.hostname or "")


@router.get("/{lease}")
def inspect(ctx: Ctx, access: Viewer, lease: str, request: Request) -> LeaseView:
    """Return one lease, including how to connect to it."""
    return leases.get(ctx, access, lease, host=request.url.hostname or "")


@router.post("/{lease}/extend")
def extend(ctx: Ctx, access: Worker, lease: str, ask: LeaseExtend, request: Request) -> LeaseView:
    """Extend a lease. At most seven days can be left after the extension."""
    return leases.extend(ctx, access, lease, ask, host=request.url.hostname or "")


@router.post("/{lease}/restart")
def restart(ctx: Ctx, access: Worker, lease: str, request: Request) -> LeaseView:
    """Restart a lease that went offline."""
    return leases.restart(ctx, access, lease, host=request.url.hostname or "")


@router.post("/{lease}/certificate")
def certificate(ctx: Ctx, access: Worker, lease: str, ask: CertificateRequest) -> Certificate:
    """Issue an SSH certificate that is valid for a few minutes. Only the person who rented the lease can get one."""
    return leases.certificate(ctx, access, lease, ask)


@router.delete("/{lease}")
def release(ctx: Ctx, access: Worker, lease: str, request: Request) -> LeaseView:
    """End a lease now."""
    return leases.release(ctx, access, lease, host=request.url.hostname or "")
