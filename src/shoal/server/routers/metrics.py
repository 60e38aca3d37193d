"""Data that jobs have logged: metrics, media, sample logs and hyperparameters; lines of charts, marks and notes, layouts."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query, Response
from fastapi.responses import StreamingResponse

from shoal.core.charts import ChartDefinitions, ChartLines, ChartPage, Layouts, LayoutSave, Mark, NoteSave, StepNoteView
from shoal.core.metrics import Axis, MediaView, MetricName, MetricsView
from shoal.core.schema import MOST_INT
from shoal.server.artifacts import media
from shoal.server.charts import definitions, layouts, marks
from shoal.server.context import Ctx
from shoal.server.metrics import many
from shoal.server.metrics import reads as metric_reads
from shoal.server.policy import PersonalView, Viewer, Worker
from shoal.server.routers import api_router

router = api_router("/workspaces/{workspace}", tags=["metrics"])


@router.get("/jobs/{job}/metrics", response_model=None)
def metrics(
    ctx: Ctx,
    access: Viewer,
    job: str,
    name: Annotated[list[str], Query(max_length=1000)] = [],  # noqa: B006
    points: Annotated[int | None, Query(ge=4, le=10_000_000)] = None,
    axis: Axis = "step",
    after: Annotated[int, Query(ge=0, le=MOST_INT)] = 0,
    ghosts: bool = False,
    smoothing: Annotated[float, Query(ge=0, lt=1)] = 0.0,
    buckets: bool = False,
    start: Annotated[float | None, Query(alias="from", allow_inf_nan=False)] = None,
    end: Annotated[float | None, Query(alias="to", allow_inf_nan=False)] = None,
) -> MetricsView:
    """Return the points of all metrics, or of those given by `name`, as one history over all attempts.

    With `points`, each metric is reduced to about that many points: of each interval its minimum and its maximum are kept.
    `axis` selects x: the step, Unix seconds, or seconds since the job's first point. With `after`, only points newer than
    that cursor are returned. With `ghosts`, points that a newer attempt has replaced are returned as well. NaN and
    infinities are the strings "nan", "inf" and "-inf".

    `smoothing` adds an exponential moving average, computed from all points before the reduction: the smoothed value at a
    step is the mean of the values up to it, each weighted by smoothing ** (distance in steps / unit). The unit is 1/200 of
    the steps from first to last, or the mean distance between two points if there are fewer. `buckets` adds first x, last
    x, count, min, mean, max and last value of each interval.

    `from` and `to` select a part of the x axis, both ends included; `points` then is the resolution of that part, so a part
    with fewer points is returned as logged. The smoothed curve of a part is the same part of the whole curve.
    """
    body = metric_reads.read(
        ctx, access, job, names=name, points=points, axis=axis, after=after, ghosts=ghosts, smoothing=smoothing,
        buckets=buckets, span=(start, end),
    )  # fmt: skip
    return Response(body, media_type="application/json")  # type: ignore[return-value]


@router.get("/jobs/{job}/metric-names")
def metric_names(ctx: Ctx, access: Viewer, job: str) -> list[MetricName]:
    """List the metrics of a job with the count, last, lowest and highest value of each."""
    return metric_reads.names(ctx, access, job)


@router.get("/jobs/{job}/media")
def list_media(ctx: Ctx, access: Viewer, job: str) -> list[MediaView]:
    """List the images, figures and tables that the job has logged."""
    return media.list_media(ctx, access, job)


@router.get("/jobs/{job}/media/{media_id}")
def medium(ctx: Ctx, access: Viewer, job: str, media_id: str) -> StreamingResponse:
    """Download one logged image, figure or table. Only safe types keep their content type, and headers prevent a browser
    from running scripts in it."""
    found = media.content(ctx, access, job, media_id)
    return StreamingResponse(found.body, found.status, found.headers, found.media_type)


@router.get("/jobs/{job}/ledger")
def ledger(ctx: Ctx, access: Viewer, job: str) -> list[dict[str, Any]]:
    """Return the sample log of a job: which samples each step used, as recorded by the workers."""
    return metric_reads.ledger(ctx, access, job)


@router.get("/jobs/{job}/config")
def config(ctx: Ctx, access: Viewer, job: str) -> dict[str, Any]:
    """Return the hyperparameters that the script passed to `shoal.init(config=…)`."""
    return metric_reads.config(ctx, access, job)


@router.get("/metrics/query", response_model=None)
def query_metrics(
    ctx: Ctx,
    access: Viewer,
    job: Annotated[list[str], Query(min_length=1, max_length=many.MAX_RUNS)],
    name: Annotated[list[str], Query(min_length=1, max_length=many.MAX_NAMES)],
    x: Annotated[str, Query(min_length=1, max_length=500)] = "step",
    points: Annotated[int, Query(ge=4, le=100_000)] = 400,
    smoothing: Annotated[float, Query(ge=0, lt=1)] = 0.0,
    start: Annotated[float | None, Query(alias="from", allow_inf_nan=False)] = None,
    end: Annotated[float | None, Query(alias="to", allow_inf_nan=False)] = None,
    times: bool = False,
    ghosts: bool = False,
) -> ChartLines:
    """Return lines of many runs for one chart, in columns.

    `job` (repeatable) is a job, or several separated by commas, whose mean over runs is returned with its spread. `name`
    (repeatable) is a metric or an expression such as `eval/loss - loss`, which is computed at the steps of its rarest metric
    from the newest value of each other metric. `x` is `step`, `time` (Unix seconds), `relative` (seconds since the run's first
    point) or the name of a metric, such as `tokens`.

    Each line is reduced to at most `points` intervals with mean, lowest and highest value; a line with fewer points is returned
    as logged. With `times`, the time of each point is returned; with `ghosts`, also the points that later attempts have replaced.
    `smoothing`, `from` and `to` are as for the metrics of one job. Runs without one of the metrics are left out.
    """
    wanted = many.Wanted(
        names=name, x=x, points=points, smoothing=smoothing, span=(start, end), times=times, ghosts=ghosts,
    )  # fmt: skip
    body = many.query(ctx, access, job, wanted)
    return Response(body, media_type="application/json")  # type: ignore[return-value]


@router.get("/jobs/{job}/marks")
def list_marks(ctx: Ctx, access: Viewer, job: str) -> list[Mark]:
    """List what is marked on the curves of a run: checkpoints, restarts, resumes, preemptions, stalls, failed steps, notes."""
    return marks.list_marks(ctx, access, job)


@router.get("/jobs/{job}/notes")
def list_notes(ctx: Ctx, access: Viewer, job: str) -> list[StepNoteView]:
    """List the notes at steps of a run."""
    return marks.list_notes(ctx, access, job)


@router.post("/jobs/{job}/notes", status_code=201)
def add_note(ctx: Ctx, access: Worker, job: str, request: NoteSave) -> Mark:
    """Write a note at a step of a run; it is shown on its curves."""
    return marks.add_note(ctx, access, job, request)


@router.put("/jobs/{job}/notes/{note}")
def change_note(
    ctx: Ctx, access: Worker, job: str, note: Annotated[int, Path(ge=0, le=MOST_INT)], request: NoteSave
) -> StepNoteView:
    """Change the step and the text of a note."""
    return marks.change_note(ctx, access, job, note, request)


@router.delete("/jobs/{job}/notes/{note}", status_code=204)
def delete_note(ctx: Ctx, access: Worker, job: str, note: Annotated[int, Path(ge=0, le=MOST_INT)]) -> None:
    """Delete a note at a step of a run."""
    marks.delete_note(ctx, access, job, note)


@router.get("/jobs/{job}/chart-definitions")
def chart_definitions(ctx: Ctx, access: Viewer, job: str) -> ChartDefinitions:
    """Return the axes and charts that the script defined with `run.define_metric` and `run.define_chart`."""
    return definitions.get(ctx, access, job)


@router.get("/chart-layouts/{page}")
def get_layouts(ctx: Ctx, access: Viewer, page: ChartPage) -> Layouts:
    """Return your layout of a page's charts, and the one that the workspace shares."""
    return layouts.get(ctx, access, page)


@router.put("/chart-layouts/{page}", status_code=204)
def save_layout(ctx: Ctx, access: PersonalView, page: ChartPage, request: LayoutSave) -> None:
    """Save your layout of a page's charts in this workspace."""
    layouts.save(ctx, access, page, request.layout, shared=False)


@router.delete("/chart-layouts/{page}", status_code=204)
def delete_layout(ctx: Ctx, access: PersonalView, page: ChartPage) -> None:
    """Delete your layout of a page's charts; the shared one is shown again."""
    layouts.delete(ctx, access, page, shared=False)


@router.put("/chart-layouts/{page}/shared", status_code=204)
def share_layout(ctx: Ctx, access: Worker, page: ChartPage, request: LayoutSave) -> None:
    """Save the layout that members of the workspace without an own one see."""
    layouts.save(ctx, access, page, request.layout, shared=True)


@router.delete("/chart-layouts/{page}/shared", status_code=204)
def delete_shared_layout(ctx: Ctx, access: Worker, page: ChartPage) -> None:
    """Delete the shared layout of a page's charts."""
    layouts.delete(ctx, access, page, shared=True)
