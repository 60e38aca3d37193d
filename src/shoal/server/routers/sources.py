"""Sources: code that jobs run."""

from __future__ import annotations

from fastapi import APIRouter

from shoal.core.artifacts import SourceCommit, SourceView
from shoal.core.people import GitFetch
from shoal.server.context import Ctx
from shoal.server.policy import Worker
from shoal.server.services import sources

router = APIRouter(prefix="/workspaces/{workspace}/sources", tags=["sources"])


@router.post("")
def commit(ctx: Ctx, access: Worker, request: SourceCommit) -> SourceView:
    """Commit a source by its manifest; `missing` in the reply lists chunks to upload before committing again."""
    return sources.commit(ctx, access, request)


@router.post("/git")
def fetch(ctx: Ctx, access: Worker, request: GitFetch) -> SourceView:
    """Have the server fetch a git repository at a revision and keep it as a source."""
    return sources.from_git(ctx, access, request)
