"""Secrets of a workspace. Values can be written but are never returned; only jobs receive them."""

from __future__ import annotations

from shoal.core.people import SecretSet, SecretView
from shoal.server.context import Ctx
from shoal.server.people import secrets
from shoal.server.policy import Viewer, Worker
from shoal.server.routers import api_router

router = api_router("/workspaces/{workspace}/secrets", tags=["secrets"])


@router.get("")
def list_secrets(ctx: Ctx, access: Viewer) -> list[SecretView]:
    """List the names of the workspace's secrets."""
    return secrets.list_secrets(ctx, access)


@router.put("")
def set_secret(ctx: Ctx, access: Worker, request: SecretSet) -> SecretView:
    """Create a secret, or replace its value."""
    return secrets.set_secret(ctx, access, request)


@router.delete("/{name}", status_code=204)
def delete_secret(ctx: Ctx, access: Worker, name: str) -> None:
    """Delete a secret. Jobs that are already running keep the value."""
    secrets.delete_secret(ctx, access, name)
