"""Sources: code that jobs run."""

from __future__ import annotations

from shoal.core.artifacts import SourceCommit, SourceView
from shoal.core.checks import CodeCheckView
from shoal.core.jobs import JobSpec
from shoal.core.notebooks import NotebookFetch, NotebookSource, Receipt
from shoal.core.people import GitFetch
from shoal.server.context import Ctx
from shoal.server.policy import Viewer, Worker
from shoal.server.routers import api_router
from shoal.server.services import code_checks, notebooks, sources

router = api_router("/workspaces/{workspace}/sources", tags=["sources"])


@router.post("")
def commit(ctx: Ctx, access: Worker, request: SourceCommit) -> SourceView:
    """Commit a source by its manifest; `missing` in the reply lists chunks to upload before committing again."""
    return sources.commit(ctx, access, request)


@router.post("/git")
def fetch(ctx: Ctx, access: Worker, request: GitFetch) -> SourceView:
    """Have the server fetch a git repository at a revision and keep it as a source."""
    return sources.from_git(ctx, access, request)


@router.post("/notebook")
def fetch_notebook(ctx: Ctx, access: Worker, request: NotebookFetch) -> NotebookSource:
    """Have the server fetch a notebook (Colab, GitHub, a gist, Jupyter, or any URL), make a script of it and keep that."""
    return notebooks.from_url(ctx, access, request)


@router.post("/check")
def check(ctx: Ctx, access: Viewer, spec: JobSpec) -> CodeCheckView:
    """What would end a job, or make it train something else than meant, by reading its code. Nothing is run."""
    return code_checks.of_job(ctx, access, spec)


@router.get("/{source}/receipt")
def receipt(ctx: Ctx, access: Viewer, source: str) -> Receipt:
    """What became of each cell of the notebook that a source was made of."""
    return notebooks.get_receipt(ctx, access, source)
