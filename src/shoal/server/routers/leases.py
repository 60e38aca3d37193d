"""Leases: shares of machines, rented by SSH."""

from __future__ import annotations

from fastapi import Request

from shoal.core.leases import Certificate, CertificateAsk, LeaseAsk, LeaseCreated, LeaseExtend, LeaseView
from shoal.server.context import Ctx
from shoal.server.policy import Viewer, Worker
from shoal.server.routers import api_router
from shoal.server.services import leases

router = api_router("/workspaces/{workspace}/leases", tags=["leases"])


@router.post("", status_code=201)
def rent(ctx: Ctx, access: Worker, ask: LeaseAsk, request: Request) -> LeaseCreated:
    """Rent a share of a machine. It waits for its slots as a job does; a password, if asked for, is told here and never again."""
    return leases.rent(ctx, access, ask, host=request.url.hostname or "")


@router.get("")
def list_leases(ctx: Ctx, access: Viewer, request: Request, ended: bool = False) -> list[LeaseView]:
    """Leases of the workspace, newest first: those that have not ended, or ended within a day; with `ended`, all."""
    return leases.list_leases(ctx, access, ended=ended, host=request.url.hostname or "")


@router.get("/{lease}")
def inspect(ctx: Ctx, access: Viewer, lease: str, request: Request) -> LeaseView:
    """One lease, and how to reach it."""
    return leases.get(ctx, access, lease, host=request.url.hostname or "")


@router.post("/{lease}/extend")
def extend(ctx: Ctx, access: Worker, lease: str, ask: LeaseExtend, request: Request) -> LeaseView:
    """Give it more time; no more than seven days can be left."""
    return leases.extend(ctx, access, lease, ask, host=request.url.hostname or "")


@router.post("/{lease}/restart")
def restart(ctx: Ctx, access: Worker, lease: str, request: Request) -> LeaseView:
    """Start one again that went offline."""
    return leases.restart(ctx, access, lease, host=request.url.hostname or "")


@router.post("/{lease}/certificate")
def certificate(ctx: Ctx, access: Worker, lease: str, ask: CertificateAsk) -> Certificate:
    """A certificate that opens it for a few minutes, for whoever rented it."""
    return leases.certificate(ctx, access, lease, ask)


@router.delete("/{lease}")
def release(ctx: Ctx, access: Worker, lease: str, request: Request) -> LeaseView:
    """End it now."""
    return leases.release(ctx, access, lease, host=request.url.hostname or "")
