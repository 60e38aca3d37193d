"""The queue on the wire: its order, why a job waits and what would start it, and the limits of each workspace."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from shoal.core.device_requirements import DeviceRequirements, check_machines
from shoal.core.gpu_models import check_model
from shoal.core.jobs import MAX_TIME_LIMIT, Device
from shoal.core.schema import Schema, Utc, View


class QuotaView(View):
    """Quota and present use of a workspace."""

    workspace_id: str
    workspace: str
    owner: str
    """E-mail address of its first owner."""
    slots: int | None
    """Largest number of slots its jobs may hold at once; None for no limit."""
    models: dict[str, int] = {}
    """Model of GPU → largest number of slots of it that its jobs may hold at once."""
    weight: float
    in_use: int
    queued: int
    """Number of waiting jobs."""


class QuotaSet(Schema):
    """Changes to a quota. Omitted fields are left unchanged."""

    slots: int | None = Field(default=None, ge=0, le=1_000_000)
    unlimited: bool = False
    """Remove the limit on slots."""
    models: dict[Annotated[str, AfterValidator(check_model)], Annotated[int, Field(ge=0, le=1_000_000)] | None] = {}
    """Model of GPU, such as H100 → largest number of slots of it, or null to remove that limit."""
    weight: float | None = Field(default=None, gt=0, le=1_000)


class JobChange(Schema):
    """Changes to a waiting job. Omitted fields are left unchanged; a duration of 0 removes it."""

    priority: int | None = Field(default=None, ge=-100, le=100)
    min_nodes: int | None = Field(default=None, ge=1, le=10_000)
    max_nodes: int | None = Field(default=None, ge=1, le=10_000)
    accels: int | None = Field(default=None, ge=1, le=1_024)
    device: Device | None = None
    """Kind of slots."""
    mixed_models: bool | None = None
    """Allow nodes with different models of accelerators."""
    time_limit_s: int | None = Field(default=None, ge=0, le=int(MAX_TIME_LIMIT.total_seconds()))
    expected_s: int | None = Field(default=None, ge=0, le=int(MAX_TIME_LIMIT.total_seconds()))
    exclude: list[str] | None = Field(default=None, max_length=1_000)
    prefer: list[str] | None = Field(default=None, max_length=1_000)


class Suggestion(View):
    """The smallest change that would start a waiting job now. It was tested on the present queue."""

    what: str
    """Description of the change."""
    command: str
    """Command that makes the change."""
    change: JobChange | None = None
    """Request body that makes the change; None if something other than the job must change."""
    preempts: list[str] = []
    """Jobs that would be preempted for it, as far as you may see their names."""


class WhyView(View):
    """The one reason why a job waits, with evidence."""

    job: str
    status: str
    reason: Literal[
        "slots", "quota", "machines", "pause", "after", "turn", "engine", "starting", "stalled", "not_waiting"
    ]
    text: str
    evidence: list[str]
    place: int | None = None
    """Position in the queue, counted from 1."""
    starts_at: Utc | None = None
    """Estimated start; None if no estimate is possible."""
    sure: bool = False
    """True if the estimate uses only known durations: time limits, expected run times, progress, and earlier jobs with the same
    script."""
    suggestion: Suggestion | None = None


class QueueRow(View):
    """A job in the queue. Jobs of workspaces you are not a member of have no names."""

    place: int
    job_id: str | None
    job: str | None
    workspace: str | None
    priority: int
    min_nodes: int
    max_nodes: int
    accels: int
    device: str = "auto"
    """Kind of slots it requests."""
    since: Utc
    waits: str
    starts_at: Utc | None = None


class QueueShare(View):
    """Share of one of your workspaces compared with the others."""

    workspace: str
    slots: int | None
    """Its quota."""
    weight: float
    in_use: int
    used_slot_hours: float
    """Recent use in slot-hours; older use counts less."""


class QueueView(View):
    """The queue and the present use of the pool."""

    slots_total: int
    slots_free: int
    running: int
    """Number of running jobs."""
    queued: int
    """Number of waiting jobs."""
    rows: list[QueueRow]
    """First jobs of the queue, in the order in which the scheduler considers them."""
    shares: list[QueueShare]


class StartEstimateRequest(DeviceRequirements):
    """A job that is not submitted, to find out when it would start."""

    min_nodes: int = Field(default=1, ge=1, le=10_000)
    max_nodes: int = Field(default=1, ge=1, le=10_000)
    accels: int = Field(default=1, ge=1, le=1_024)
    device: Device = "auto"
    """Kind of slots."""
    priority: int = Field(default=0, ge=-100, le=100)
    time_limit_s: int | None = Field(default=None, ge=1, le=int(MAX_TIME_LIMIT.total_seconds()))
    expected_s: int | None = Field(default=None, ge=1, le=int(MAX_TIME_LIMIT.total_seconds()))
    exclude: list[str] = Field(default=[], max_length=1_000)
    prefer: list[str] = Field(default=[], max_length=1_000)

    @model_validator(mode="after")
    def _node_range(self) -> StartEstimateRequest:
        if self.max_nodes < self.min_nodes:
            raise ValueError(
                f"--nodes {self.min_nodes}:{self.max_nodes} is not a range: the first number must not be larger than the second"
            )
        check_machines(self.exclude, self.prefer)
        return self


class StartEstimateView(View):
    """Expected result if the job were submitted now."""

    starts_now: bool
    starts_at: Utc | None
    sure: bool
    place: int | None
    """Position in the queue, if it would have to wait."""
    text: str
    preempts: list[str] = []
    delays: int = 0
    """Number of jobs that would start later than without it."""
