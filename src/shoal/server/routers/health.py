"""Is anybody there."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from shoal import __version__
from shoal.server.context import Ctx
from shoal.server.policy import Anyone

router = APIRouter(tags=["health"])


@router.get("/health", dependencies=[Anyone])
def health(ctx: Ctx) -> dict[str, Any]:
    """Answers as soon as the server is ready. `instance` identifies its data directory."""
    return {"status": "ok", "version": __version__, "private": ctx.private, "instance": ctx.instance}
