"""Sources: the code that jobs run."""

from __future__ import annotations

from shoal.core.artifacts import SourceCommit, SourceView
from shoal.core.checks import CodeCheckView
from shoal.core.jobs import JobSpec
from shoal.core.notebooks import NotebookFetch, NotebookSource, Receipt
from shoal.core.people import GitFetch
from shoal.server.artifacts import code_checks, sources
from shoal.server.context import Ctx
from shoal.server.notebooks import service as notebooks
from shoal.server.policy import Viewer, Worker
from shoal.server.routers import api_router

router = api_router("/workspaces/{workspace}/sources", tags=["sources"])


@router.post("")
def commit(ctx: Ctx, access: Worker, request: SourceCommit) -> SourceView:
    """Commit a source by its manifest. If `missing` lists chunks, upload them and commit again."""
    return sources.commit(ctx, access, request)


@router.post("/git")
def fetch(ctx: Ctx, access: Worker, request: GitFetch) -> SourceView:
    """Let the server fetch a git repository at a revision and store it as a source."""
    return sources.from_git(ctx, access, request)


@router.post("/notebook")
def fetch_notebook(ctx: Ctx, access: Worker, request: NotebookFetch) -> NotebookSource:
    """Let the server fetch a notebook (Colab, GitHub, a gist, Jupyter, or any URL), convert it to a script and store that
    as a source."""
    return notebooks.from_url(ctx, access, request)


@router.post("/check")
def check(ctx: Ctx, access: Viewer, spec: JobSpec) -> CodeCheckView:
    """Check a job's code for problems that would make it fail or train something unintended. Runs nothing."""
    return code_checks.of_job(ctx, access, spec)


@router.get("/{source}/receipt")
def receipt(ctx: Ctx, access: Viewer, source: str) -> Receipt:
    """Return how each cell of a notebook was converted when the source was created from it."""
    return notebooks.get_receipt(ctx, access, source)
