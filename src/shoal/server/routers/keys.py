"""API keys of the person asking."""

from __future__ import annotations

from shoal.core.people import KeyCreate, KeyCreated, KeyView
from shoal.server.context import Ctx
from shoal.server.policy import Keyholder, Reader
from shoal.server.routers import api_router
from shoal.server.services import keys

router = api_router("/keys", tags=["keys"])


@router.get("")
def list_keys(ctx: Ctx, principal: Reader) -> list[KeyView]:
    """Your keys, newest first; never the keys themselves."""
    return keys.list_keys(ctx, principal)


@router.post("", status_code=201)
def create_key(ctx: Ctx, principal: Keyholder, request: KeyCreate) -> KeyCreated:
    """Make a key. The reply is the only time it is shown."""
    return keys.create_key(ctx, principal, request)


@router.delete("/{key}", status_code=204)
def revoke_key(ctx: Ctx, principal: Keyholder, key: str) -> None:
    """Revoke a key by its name or id, at once."""
    keys.revoke_key(ctx, principal, key)
