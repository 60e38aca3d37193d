"""Usage and its cost on the wire: prices, sums from the ledger, verification of the ledger, and quotes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from shoal.core.device_requirements import DeviceRequirements
from shoal.core.jobs import Device
from shoal.core.schema import Utc, View

UsageBy = Literal["job", "workspace", "person", "day"]
Basis = Literal["measured", "scaled", "bound"]
"""Basis of a quote: see QuoteRow.basis."""


class PricesView(View):
    """Prices of slots."""

    currency: str
    prices: dict[str, float]
    """Kind of slot → price of one slot for one hour."""
    models: dict[str, float] = {}
    """Model of GPU → price of one for one hour, which goes before that of its kind."""


class UsageRow(View):
    """Usage of one job, workspace, person or day. If the currency has changed, there is one row for each currency."""

    key: str
    """Name of the job or workspace, e-mail address of the person, or the day (UTC)."""
    id: str | None = None
    """Id of the job or workspace; None for people and days."""
    jobs: int
    slot_seconds: float
    cost: float | None
    """Cost of the slot time; None if the slots had no price."""
    currency: str | None = None


class UsageView(View):
    """Usage of a period, grouped by job, workspace, person or day."""

    by: UsageBy
    since: Utc | None
    until: Utc | None
    rows: list[UsageRow]
    slot_seconds: float
    costs: dict[str, float]
    """Currency → sum; empty if the slots had no price."""


class LedgerProblem(View):
    """An inconsistency found in the ledger."""

    seq: int | None
    """Number of the entry; None if the problem concerns the ledger as a whole."""
    job: str | None
    what: str


class VerifyView(View):
    """Result of a verification of the ledger."""

    entries: int
    """Number of entries of the whole ledger. All of them are read."""
    whole: bool
    seq: int
    head: str
    """Hash of the last entry. A copy kept elsewhere later proves that no earlier entry was rewritten."""
    problems: list[LedgerProblem]
    """Problems found: all of them for an admin, otherwise those of the workspace."""


class QuoteRequest(DeviceRequirements):
    """A request for an estimate of the time and cost of a job."""

    entry: list[str] = Field(min_length=1, max_length=10_000)
    min_nodes: int = Field(default=1, ge=1, le=10_000)
    max_nodes: int = Field(default=1, ge=1, le=10_000)
    accels: int = Field(default=1, ge=1, le=1_024)
    device: Device = "auto"
    """Kind of slots; it affects only the price."""
    source_id: str | None = None
    """Source of the job, used to find earlier jobs with the same code."""
    job: str | None = None
    """Name of the only job to base the estimate on, such as a probe; None: all similar jobs."""

    @model_validator(mode="after")
    def _node_range(self) -> QuoteRequest:
        if self.max_nodes < self.min_nodes:
            raise ValueError(
                f"--nodes {self.min_nodes}:{self.max_nodes} is not a range: the first number must not be larger than the second"
            )
        return self


class QuoteRow(View):
    """Estimated time and cost at one size."""

    nodes: int
    accels: int
    slots: int
    basis: Basis
    """measured: from jobs of the same length and size. scaled: from the speed of similar jobs, for another number of steps.
    bound: a lower bound of time and cost, which assumes that added slots speed up the job without loss."""
    low_s: float
    high_s: float | None
    """Upper estimate in seconds; None if only a lower bound is known."""
    cost_low: float | None
    cost_high: float | None
    jobs: int
    """Number of jobs the estimate is based on."""


class QuoteView(View):
    """An estimate of the time and cost of a job."""

    rows: list[QuoteRow]
    """Estimates, the requested size first; empty if no estimate is possible."""
    rests_on: list[str]
    """Names of the jobs the estimate is based on."""
    said: list[str]
    """Explanations: what the estimate is based on and what it does not include."""
    steps: int | None
    """Number of steps of the job, if known."""
    currency: str
    price: float
    """Price of one slot for one hour, for the most expensive kind the job could get; 0 if slots have no price."""
