"""The queue on the wire: its order, why a job waits and what would start it, and what each workspace may use."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from shoal.core.jobs import MAX_TIME_LIMIT, Device
from shoal.core.schema import Schema, Utc, View


class QuotaView(View):
    workspace_id: str
    workspace: str
    owner: str
    """E-mail of its first owner."""
    slots: int | None
    """What its jobs may hold at once; None for as many as there are."""
    weight: float
    in_use: int
    queued: int
    """Jobs that wait."""


class QuotaSet(Schema):
    """What is not given stays."""

    slots: int | None = Field(default=None, ge=0, le=1_000_000)
    unlimited: bool = False
    """Take the quota away."""
    weight: float | None = Field(default=None, gt=0, le=1_000)


class JobChange(Schema):
    """What to change of a job that waits. What is not given stays; a length of 0 takes it away."""

    priority: int | None = Field(default=None, ge=-100, le=100)
    min_nodes: int | None = Field(default=None, ge=1, le=10_000)
    max_nodes: int | None = Field(default=None, ge=1, le=10_000)
    accels: int | None = Field(default=None, ge=1, le=1_024)
    device: Device | None = None
    """Kind of slots."""
    time_limit_s: int | None = Field(default=None, ge=0, le=int(MAX_TIME_LIMIT.total_seconds()))
    expected_s: int | None = Field(default=None, ge=0, le=int(MAX_TIME_LIMIT.total_seconds()))
    exclude: list[str] | None = Field(default=None, max_length=1_000)
    prefer: list[str] | None = Field(default=None, max_length=1_000)


class Suggestion(View):
    """The cheapest change that would start a waiting job now; it was tried on the queue as it is."""

    what: str
    """In words."""
    command: str
    """To type."""
    change: JobChange | None = None
    """To send; None where it is not the job that must change."""
    preempts: list[str] = []
    """Jobs that would make way for it, as far as you may know their names."""


class WhyView(View):
    """Why a job waits, in one reason, with its evidence."""

    job: str
    status: str
    reason: Literal["slots", "quota", "machines", "pause", "turn", "engine", "starting", "stalled", "not_waiting"]
    text: str
    evidence: list[str]
    place: int | None = None
    """In the queue, counted from 1."""
    starts_at: Utc | None = None
    """When it will likely start; None if nothing can be said."""
    sure: bool = False
    """Whether that rests on known lengths only: limits, expectations, progress, earlier jobs with the same script."""
    suggestion: Suggestion | None = None


class QueueRow(View):
    """A job in the queue. Of other people's workspaces one sees only that something is there."""

    place: int
    job_id: str | None
    job: str | None
    workspace: str | None
    priority: int
    min_nodes: int
    max_nodes: int
    accels: int
    device: str = "auto"
    """Kind of slots it asks for."""
    since: Utc
    waits: str
    starts_at: Utc | None = None


class QueueShare(View):
    """One of your workspaces against the others."""

    workspace: str
    slots: int | None
    """Its quota."""
    weight: float
    in_use: int
    used_slot_hours: float
    """Of late: older use counts less."""


class QueueView(View):
    slots_total: int
    slots_free: int
    running: int
    """Jobs."""
    queued: int
    rows: list[QueueRow]
    """The first of them, in the order they will be looked at."""
    shares: list[QueueShare]


class JobWish(Schema):
    """A job one has not submitted: when would it start?"""

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
    def _node_range(self) -> JobWish:
        if self.max_nodes < self.min_nodes:
            raise ValueError(f"--nodes {self.min_nodes}:{self.max_nodes} has its largest before its smallest")
        return self


class WishView(View):
    """What would become of a job if it were submitted now."""

    starts_now: bool
    starts_at: Utc | None
    sure: bool
    place: int | None
    """In the queue, if it would have to wait."""
    text: str
    preempts: list[str] = []
    delays: int = 0
    """Jobs that would start later than without it."""
