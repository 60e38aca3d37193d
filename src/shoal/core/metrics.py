"""Data logged by runs, on the wire: metrics and media; also imports of runs from elsewhere."""

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
"""A number; text if it is not finite ("nan", "inf", "-inf") or is a string given to `run.evaluate`."""
Bucket = tuple[float, float, int, float | None, float | None, float | None, Value]
"""First x, last x, count, min, mean, max and last value. Count, min, mean and max cover the finite values only."""


class MetricName(View):
    """One metric of a job. Points that a later attempt has replaced are not counted."""

    name: str
    kind: Literal["step", "eval", "log"]
    """Origin of the values: run.step (`step`), run.evaluate (`eval`), or the script's output (`log`)."""
    count: int
    last: Value
    last_step: int
    min: float | None
    """Smallest finite value; None if there is none."""
    max: float | None
    """Largest finite value; None if there is none."""


class MetricsView(View):
    """Points of metrics."""

    metrics: dict[str, list[tuple[float, Value]]]
    """Metric → list of [x, value], in order."""
    cursor: int
    """Position after the last point. Pass it as `after` to get only newer points."""
    starts: dict[int, int]
    """Attempt → the first step it logged. From there on it replaces the points of earlier attempts."""
    ghosts: dict[str, list[tuple[float, Value, int]]] | None = None
    """Metric → list of [x, value, attempt] of the points that later attempts have replaced; None unless requested."""
    smoothed: dict[str, list[tuple[float, float | None]]] | None = None
    """Metric → list of [x, smoothed value], computed from all points before downsampling; None unless requested."""
    buckets: dict[str, list[Bucket]] | None = None
    """Metric → buckets of equally many points; `metrics` holds the lowest and highest point of each bucket. None unless
    requested."""


class MediaView(View):
    """An image, figure or table that a run has logged."""

    id: str
    name: str
    type: str
    """Type: image, figure or table."""
    step: int
    at: float
    """Unix time in seconds."""
    attempt: int
    mime: str
    size: int
    file: str


class MediaCommit(Schema):
    """An image, figure or table that a run has logged.

    Commits of a node with the same (rank, n) are the same one, so sending twice is safe.
    """

    rank: Count64
    n: Count64
    """Line number in the rank's spool file."""
    t: float = Field(ge=0, le=1e12)
    step: int = Field(ge=-(1 << 53), le=1 << 53)
    name: str = Field(max_length=500)
    type: str = Field(max_length=50)
    mime: str = Field(default="application/octet-stream", max_length=200)
    manifest: Manifest
    """Manifest of exactly one file."""

    @field_validator("manifest")
    @classmethod
    def _one_file(cls, value: Manifest) -> Manifest:
        if len(value.files) != 1:
            raise ValueError("the manifest of a medium must have exactly one file")
        if value.size > MAX_MEDIA:
            raise ValueError(f"a medium can have at most {MAX_MEDIA >> 20} MiB")
        return value


class MediaCommitted(View):
    """The answer to a commit: missing chunks, or the id of the medium."""

    missing: list[str] = []
    """Chunks the server does not have yet. While this list is not empty, nothing is committed: upload them and commit again."""
    id: str | None = None
    manifest_id: str | None = None


class RunImport(Schema):
    """A run directory from outside the platform that is to be imported.

    Imports of a workspace with the same `run_id` are one job.
    """

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
    """The job of an imported run."""

    job: JobSummary
    heads: dict[str, int]
    """Part (`metric/RANK`, `log/FILE`) → number of its lines the server already has."""


class RunState(Schema):
    """State and progress of an imported run."""

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
            raise ValueError("the status of an imported run must be running or a final one")
        return value


Record = dict[str, Any]
"""One line of a spool file (docs/reference/job-runtime.md)."""
