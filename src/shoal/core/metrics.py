"""What a run tells of itself, on the wire: metrics, media, and runs brought from elsewhere."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field, field_validator

from shoal.core.artifacts import Manifest
from shoal.core.jobs import JobSummary, Progress
from shoal.core.names import check_name
from shoal.core.schema import Count64, Int64, Schema, View
from shoal.core.states import JobState

MAX_MEDIA = 64 << 20
Axis = Literal["step", "time", "relative"]
Value = float | str
"""A number; text where it is not a finite one ("nan", "inf", "-inf"), or a string given to `run.evaluate`."""
Bucket = tuple[float, float, int, float | None, float | None, float | None, Value]
"""First x, last x, count, min, mean, max, last value; count, min, mean and max are of the finite values."""


class MetricName(View):
    """One metric of a job, without what later attempts have taken the place of."""

    name: str
    kind: Literal["step", "eval"]
    count: int
    last: Value
    last_step: int
    min: float | None
    """Of the finite values; None where there are none."""
    max: float | None


class MetricsView(View):
    metrics: dict[str, list[tuple[float, Value]]]
    """Metric → [x, value] in order."""
    cursor: int
    """Give it back as `after` to get only what has come since."""
    starts: dict[int, int]
    """Attempt → the first step it logged: from there on it has taken the place of the attempts before."""
    ghosts: dict[str, list[tuple[float, Value, int]]] | None = None
    """Metric → [x, value, attempt] of what later attempts have taken the place of; None unless asked for."""
    smoothed: dict[str, list[tuple[float, float | None]]] | None = None
    """Metric → [x, smoothed value], computed from all points before thinning; None unless asked for."""
    buckets: dict[str, list[Bucket]] | None = None
    """Metric → its stretches of equally many points, of which `metrics` holds the lowest and highest; None unless asked for."""


class MediaView(View):
    id: str
    name: str
    type: str
    """image, figure or table."""
    step: int
    at: float
    """Unix seconds."""
    attempt: int
    mime: str
    size: int
    file: str


class MediaCommit(Schema):
    """A picture, figure or table a run has logged. Equal (rank, n) of one node are the same one, however often it is sent."""

    rank: Count64
    n: Count64
    """Line of the rank's spool file."""
    t: float = Field(ge=0, le=1e12)
    step: int = Field(ge=-(1 << 53), le=1 << 53)
    name: str = Field(max_length=500)
    type: str = Field(max_length=50)
    mime: str = Field(default="application/octet-stream", max_length=200)
    manifest: Manifest
    """Of one file."""

    @field_validator("manifest")
    @classmethod
    def _one_file(cls, value: Manifest) -> Manifest:
        if len(value.files) != 1:
            raise ValueError("a medium is one file")
        if value.size > MAX_MEDIA:
            raise ValueError(f"a medium is at most {MAX_MEDIA >> 20} MiB")
        return value


class MediaCommitted(View):
    missing: list[str] = []
    """Not committed while this is non-empty: upload these chunks and commit again."""
    id: str | None = None
    manifest_id: str | None = None


class RunImport(Schema):
    """A run directory made off the platform, about to be brought in. Equal `run_id`s of a workspace are one job."""

    run_id: str = Field(min_length=1, max_length=200)
    name: str
    created: datetime
    argv: list[str] = Field(default=[], max_length=10_000)
    world_size: int = Field(default=1, ge=1, le=1_000_000)
    host: str = Field(default="", max_length=255)
    path: str = Field(default="", max_length=4096)

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return check_name(value, "job name")


class RunImported(View):
    job: JobSummary
    heads: dict[str, int]
    """Part (`metric/RANK`, `log/FILE`) → lines of it that are here already."""


class RunState(Schema):
    """How far a run from elsewhere is."""

    status: JobState
    reason: str | None = Field(default=None, max_length=2000)
    exit_code: Int64 | None = None
    progress: Progress | None = None
    started: datetime | None = None
    ended: datetime | None = None

    @field_validator("status")
    @classmethod
    def _status(cls, value: JobState) -> JobState:
        if value is not JobState.RUNNING and not value.is_terminal:
            raise ValueError("a run from elsewhere is running or has ended")
        return value


Record = dict[str, Any]
"""A line of a spool file (docs/reference/job-runtime.md)."""
