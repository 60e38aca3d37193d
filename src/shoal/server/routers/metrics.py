"""What a job tells of itself: metrics, media, its data ledger and its hyperparameters."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Response
from fastapi.responses import StreamingResponse

from shoal.core.metrics import Axis, MediaView, MetricName, MetricsView
from shoal.core.schema import MOST_INT
from shoal.server.context import Ctx
from shoal.server.policy import Viewer
from shoal.server.routers import api_router
from shoal.server.services import media, metric_reads

router = api_router("/workspaces/{workspace}/jobs/{job}", tags=["metrics"])


@router.get("/metrics", response_model=None)
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
) -> MetricsView:
    """Points of all metrics, or of those named, as one history over all attempts.

    With `points`, each metric is thinned to about so many: of each stretch its lowest and its highest stay. `axis` says what
    x is: the step, unix seconds, or seconds since the job's first point. With `after`, only what came after that cursor.
    What a newer attempt has taken the place of comes as `ghosts`, if asked for. NaN and infinities are the strings "nan",
    "inf" and "-inf".

    `smoothing` adds an exponential moving average, computed from all points before thinning: the smoothed value at a step is
    the mean of the values up to it, each weighted by smoothing ** (distance in steps / unit). The unit is 1/200 of the steps
    from first to last, or the mean distance of two points where there are fewer. `buckets` adds first x, last x, count, min,
    mean, max and last of each stretch.
    """
    body = metric_reads.read(
        ctx, access, job, names=name, points=points, axis=axis, after=after, ghosts=ghosts, smoothing=smoothing,
        buckets=buckets,
    )  # fmt: skip
    return Response(body, media_type="application/json")  # type: ignore[return-value]


@router.get("/metric-names")
def metric_names(ctx: Ctx, access: Viewer, job: str) -> list[MetricName]:
    """Each metric with its count, last, lowest and highest value."""
    return metric_reads.names(ctx, access, job)


@router.get("/media")
def list_media(ctx: Ctx, access: Viewer, job: str) -> list[MediaView]:
    """Pictures, figures and tables the job has logged."""
    return media.list_media(ctx, access, job)


@router.get("/media/{media_id}")
def medium(ctx: Ctx, access: Viewer, job: str, media_id: str) -> StreamingResponse:
    """One of them. Only kinds that are harmless keep their type, and a browser runs nothing in any of them."""
    found = media.content(ctx, access, job, media_id)
    return StreamingResponse(found.body, found.status, found.headers, found.media_type)


@router.get("/ledger")
def ledger(ctx: Ctx, access: Viewer, job: str) -> list[dict[str, Any]]:
    """Which samples each step used, as the workers wrote it down."""
    return metric_reads.ledger(ctx, access, job)


@router.get("/config")
def config(ctx: Ctx, access: Viewer, job: str) -> dict[str, Any]:
    """The hyperparameters the script gave to `shoal.init(config=…)`."""
    return metric_reads.config(ctx, access, job)
