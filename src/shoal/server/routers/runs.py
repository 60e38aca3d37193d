"""Runs: queries over all jobs of a workspace, tags and notes, saved views; and runs imported by `shoal sync` and `shoal
training import`."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from shoal.core.agents import SegmentReply
from shoal.core.bugs import BugCommit, BugCommitted
from shoal.core.checkpoints import CheckpointCommit, CheckpointCommitted
from shoal.core.jobs import JobSummary
from shoal.core.metrics import MediaCommit, MediaCommitted, RunImport, RunImported, RunState
from shoal.core.runs import RunAbout, RunChange, RunColumns, RunsPage, RunsView, RunsViewSave
from shoal.core.schema import MOST_INT
from shoal.core.search_results import Found
from shoal.server.artifacts import downloads
from shoal.server.context import Ctx
from shoal.server.jobs import imported_runs
from shoal.server.policy import Reader, Viewer, Worker
from shoal.server.routers import api_router
from shoal.server.runs import changes, csv_output, find, saved_views
from shoal.server.runs import query as run_query
from shoal.server.web.redact import Redactor

router = api_router("/workspaces/{workspace}", tags=["runs"])
everywhere = api_router(tags=["runs"])
PREFIX = "/jobs/{job}/import"


@router.post("/imports")
def begin(ctx: Ctx, access: Worker, request: RunImport) -> RunImported:
    """Create the job for an imported run, or return the existing one, with the parts of the run that are stored already."""
    return imported_runs.begin(ctx, access, request)


@router.post(PREFIX + "/segments/{stream}")
async def segment(
    ctx: Ctx,
    access: Worker,
    job: str,
    stream: Literal["log", "metric"],
    part: Annotated[str, Query(min_length=1, max_length=200)],
    seq_first: Annotated[int, Query(ge=0, le=MOST_INT)],
    count: Annotated[int, Query(ge=1, le=MOST_INT)],
    request: Request,
) -> SegmentReply:
    """Append lines of one file. The body is zstd-compressed JSON lines; each line is stored once, identified by its number.
    `part` is the rank for metrics, else the file."""
    body = await request.body()
    return await run_in_threadpool(imported_runs.append, ctx, access, job, stream, part, seq_first, count, body)


@router.post(PREFIX + "/checkpoints")
def checkpoint(ctx: Ctx, access: Worker, job: str, request: CheckpointCommit) -> CheckpointCommitted:
    """Commit a complete checkpoint of the run; `missing` lists chunks to upload first."""
    return imported_runs.capture(ctx, access, job, request)


@router.post(PREFIX + "/media")
def medium(ctx: Ctx, access: Worker, job: str, request: MediaCommit) -> MediaCommitted:
    """Commit an image, figure or table of the run; `missing` lists chunks to upload first."""
    return imported_runs.commit_media(ctx, access, job, request)


@router.post(PREFIX + "/bugs")
def bug(ctx: Ctx, access: Worker, job: str, request: BugCommit) -> BugCommitted:
    """Commit a failed step of the run; `missing` lists chunks of its bug capsule to upload first."""
    return imported_runs.commit_bug(ctx, access, job, request)


@router.post(PREFIX + "/state")
def state(ctx: Ctx, access: Worker, job: str, request: RunState) -> JobSummary:
    """Update the progress of the run, or record how it ended."""
    return imported_runs.set_state(ctx, access, job, request)


Names = Annotated[list[str], Query(max_length=50)]


@router.get("/runs/query")
def query_runs(
    ctx: Ctx,
    access: Viewer,
    q: Annotated[str, Query(max_length=2000)] = "",
    sort: Annotated[str, Query(max_length=200)] = "",
    column: Names = [],  # noqa: B006
    group: Names = [],  # noqa: B006
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    offset: Annotated[int, Query(ge=0, le=MOST_INT)] = 0,
) -> RunsPage:
    """Query the runs of the workspace.

    `q` is a query such as `lr>1e-4 tag:ablation status:failed loss.min<2 user:ada` (docs/howto/runs.md). `sort` is a column,
    with `-` in front for descending order. `column` (repeatable) selects the values to return: a built-in column, a parameter,
    or a metric with `.last`, `.min`, `.max`, `.step` or `.count`, or at a step (`loss@500`). `group` (repeatable) returns groups of runs with equal
    values in these columns, with mean and spread of the selected columns; `group=-seed` groups by all parameters but the seed.
    """
    hide = Redactor.of(ctx, access)
    found = run_query.query(
        ctx, access, q=q, sort=sort, columns=column, group=group, limit=limit, offset=offset
    )  # fmt: skip
    return hidden(found, hide)


@router.get("/runs/csv")
def runs_csv(
    ctx: Ctx,
    access: Viewer,
    q: Annotated[str, Query(max_length=2000)] = "",
    sort: Annotated[str, Query(max_length=200)] = "",
    column: Names = [],  # noqa: B006
    group: Names = [],  # noqa: B006
) -> Response:
    """Return what a query matches as CSV, up to 100,000 rows; the parameters are those of `runs/query`."""
    found = run_query.query(ctx, access, q=q, sort=sort, columns=column, group=group, limit=100_000)
    body = csv_output.write(hidden(found, Redactor.of(ctx, access)), list(group))
    return Response(body, media_type="text/csv; charset=utf-8", headers=downloads.plain_headers("runs.csv"))


@router.get("/runs/columns")
def run_columns(ctx: Ctx, access: Viewer) -> RunColumns:
    """Return the parameters, metrics and tags of the newest runs, for use as columns."""
    return run_query.columns(ctx, access)


@router.patch("/runs")
def change_runs(ctx: Ctx, access: Worker, request: RunChange) -> list[RunAbout]:
    """Change tags, title, description, note, star or archive of one or more jobs: all of them, or none if one is unknown."""
    return changes.change(ctx, access, request)


@router.get("/run-views")
def list_views(ctx: Ctx, access: Viewer) -> list[RunsView]:
    """List the saved views of the workspace."""
    return saved_views.list_views(ctx, access)


@router.get("/run-views/{view}")
def get_view(ctx: Ctx, access: Viewer, view: str) -> RunsView:
    """Return one saved view."""
    return saved_views.get(ctx, access, view)


@router.put("/run-views/{view}")
def save_view(ctx: Ctx, access: Worker, view: str, request: RunsViewSave) -> RunsView:
    """Save a query under a name; a view with that name is replaced."""
    return saved_views.save(ctx, access, view, request)


@router.delete("/run-views/{view}", status_code=204)
def delete_view(ctx: Ctx, access: Worker, view: str) -> None:
    """Delete a saved view. The runs it shows are not touched."""
    saved_views.delete(ctx, access, view)


@everywhere.get("/search")
def search(ctx: Ctx, principal: Reader, q: Annotated[str, Query(min_length=1, max_length=200)]) -> list[Found]:
    """Search jobs, sweeps, swarms, datasets and checkpoints of all your workspaces by name, id, title or tag."""
    return find.find(ctx, principal, q)


def hidden(page: RunsPage, hide: Redactor) -> RunsPage:
    """Return the page with values of secrets hidden."""
    for row in page.rows:
        row.values = hide.data(row.values)
    for group in page.groups:
        group.key = hide.data(group.key)
    return page
