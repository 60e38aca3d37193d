"""Git hosts with their tokens, and named repositories."""

from __future__ import annotations

from shoal.core.people import GitSourceAdd, GitSourceView, RegistryConnect
from shoal.server.context import Ctx
from shoal.server.policy import Viewer, Worker
from shoal.server.routers import api_router
from shoal.server.services import git

router = api_router("/workspaces/{workspace}", tags=["git"])


@router.get("/registries")
def list_registries(ctx: Ctx, access: Viewer) -> list[dict[str, str]]:
    """Git hosts a token is stored for."""
    return git.list_registries(ctx, access)


@router.put("/registries")
def connect_registry(ctx: Ctx, access: Worker, request: RegistryConnect) -> dict[str, str]:
    """Store the token that opens private repositories of a git host."""
    return git.connect_registry(ctx, access, request)


@router.delete("/registries/{host}", status_code=204)
def disconnect_registry(ctx: Ctx, access: Worker, host: str) -> None:
    """Forget a git host's token."""
    git.disconnect_registry(ctx, access, host)


@router.get("/git-sources")
def list_git_sources(ctx: Ctx, access: Viewer) -> list[GitSourceView]:
    """Repositories that were given a name here."""
    return git.list_git_sources(ctx, access)


@router.post("/git-sources", status_code=201)
def add_git_source(ctx: Ctx, access: Worker, request: GitSourceAdd) -> GitSourceView:
    """Give a repository a name, for `training run --source-name`."""
    return git.add_git_source(ctx, access, request)


@router.delete("/git-sources/{name}", status_code=204)
def delete_git_source(ctx: Ctx, access: Worker, name: str) -> None:
    """Forget a named repository; sources already fetched from it stay."""
    git.delete_git_source(ctx, access, name)
