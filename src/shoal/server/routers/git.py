"""Git hosts with their tokens, and named repositories."""

from __future__ import annotations

from shoal.core.people import GitSourceAdd, GitSourceView, RegistryConnect
from shoal.server.context import Ctx
from shoal.server.git import service as git
from shoal.server.policy import Viewer, Worker
from shoal.server.routers import api_router

router = api_router("/workspaces/{workspace}", tags=["git"])


@router.get("/registries")
def list_registries(ctx: Ctx, access: Viewer) -> list[dict[str, str]]:
    """List the git hosts for which a token is stored."""
    return git.list_registries(ctx, access)


@router.put("/registries")
def connect_registry(ctx: Ctx, access: Worker, request: RegistryConnect) -> dict[str, str]:
    """Store the token for private repositories of a git host."""
    return git.connect_registry(ctx, access, request)


@router.delete("/registries/{host}", status_code=204)
def disconnect_registry(ctx: Ctx, access: Worker, host: str) -> None:
    """Delete the token of a git host."""
    git.disconnect_registry(ctx, access, host)


@router.get("/git-sources")
def list_git_sources(ctx: Ctx, access: Viewer) -> list[GitSourceView]:
    """List the named repositories of the workspace."""
    return git.list_git_sources(ctx, access)


@router.post("/git-sources", status_code=201)
def add_git_source(ctx: Ctx, access: Worker, request: GitSourceAdd) -> GitSourceView:
    """Register a repository under a name, for `training run --source-name`."""
    return git.add_git_source(ctx, access, request)


@router.delete("/git-sources/{name}", status_code=204)
def delete_git_source(ctx: Ctx, access: Worker, name: str) -> None:
    """Delete a named repository. Sources already fetched from it stay."""
    git.delete_git_source(ctx, access, name)
