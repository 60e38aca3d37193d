"""API keys of the caller."""

from __future__ import annotations

from shoal.core.people import KeyCreate, KeyCreated, KeyView
from shoal.server.context import Ctx
from shoal.server.people import keys
from shoal.server.policy import Keyholder, Reader
from shoal.server.routers import api_router

router = api_router("/keys", tags=["keys"])


@router.get("")
def list_keys(ctx: Ctx, principal: Reader) -> list[KeyView]:
    """List your API keys, newest first. The secret parts are never returned."""
    return keys.list_keys(ctx, principal)


@router.post("", status_code=201)
def create_key(ctx: Ctx, principal: Keyholder, request: KeyCreate) -> KeyCreated:
    """Create an API key. The key itself is contained in this reply only."""
    return keys.create_key(ctx, principal, request)


@router.delete("/{key}", status_code=204)
def revoke_key(ctx: Ctx, principal: Keyholder, key: str) -> None:
    """Revoke an API key by its name or id. Takes effect immediately."""
    keys.revoke_key(ctx, principal, key)
