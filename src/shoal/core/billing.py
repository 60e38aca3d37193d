"""Usage and what it costs, on the wire: prices, sums from the ledger, its verification, and quotes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from shoal.core.jobs import Device
from shoal.core.schema import Schema, Utc, View

UsageBy = Literal["job", "workspace", "person", "day"]
Basis = Literal["measured", "scaled", "bound"]


class PricesView(View):
    currency: str
    prices: dict[str, float]
    """Kind of slot → price of one for an hour."""


class UsageRow(View):
    """What was used under one key. Where the currency was changed, each has a row of its own."""

    key: str
    """The job's name, the workspace's, the person's e-mail, or the day (UTC)."""
    id: str | None = None
    """Of the job or workspace."""
    jobs: int
    slot_seconds: float
    cost: float | None
    """None where slots had no price."""
    currency: str | None = None


class UsageView(View):
    by: UsageBy
    since: Utc | None
    until: Utc | None
    rows: list[UsageRow]
    slot_seconds: float
    costs: dict[str, float]
    """Currency → sum; empty where slots had no price."""


class LedgerProblem(View):
    """Something in the ledger that is not as it was written."""

    seq: int | None
    """The entry; None where it is about the ledger as a whole."""
    job: str | None
    what: str


class VerifyView(View):
    entries: int
    """Of the whole ledger, all of which is read."""
    whole: bool
    seq: int
    head: str
    """Hash of the last entry. Noted elsewhere, it proves later on that nothing before it was rewritten."""
    problems: list[LedgerProblem]
    """Those of one's own workspace, or all for an admin."""


class QuoteAsk(Schema):
    """What a job would run, and on how much."""

    entry: list[str] = Field(min_length=1, max_length=10_000)
    min_nodes: int = Field(default=1, ge=1, le=10_000)
    max_nodes: int = Field(default=1, ge=1, le=10_000)
    accels: int = Field(default=1, ge=1, le=1_024)
    device: Device = "auto"
    """Kind of slots: only their prices count."""
    source_id: str | None = None
    """Its code, to tell which jobs ran the same."""
    job: str | None = None
    """Rest on this job alone, such as a probe; None for all that are alike."""

    @model_validator(mode="after")
    def _node_range(self) -> QuoteAsk:
        if self.max_nodes < self.min_nodes:
            raise ValueError(f"--nodes {self.min_nodes}:{self.max_nodes} has its largest before its smallest")
        return self


class QuoteRow(View):
    """Time and cost at one size."""

    nodes: int
    accels: int
    slots: int
    basis: Basis
    """measured: jobs of this very length and size; scaled: their pace, for another number of steps; bound: not faster, and
    not cheaper, than if slots were added without loss."""
    low_s: float
    high_s: float | None
    """None for a bound: nobody knows."""
    cost_low: float | None
    cost_high: float | None
    jobs: int
    """How many it rests on."""


class QuoteView(View):
    rows: list[QuoteRow]
    """The size asked for first; empty where nothing can be said."""
    rests_on: list[str]
    """Names of the jobs."""
    said: list[str]
    """What it rests on and what it leaves out, in words."""
    steps: int | None
    """Of the job asked about, where known."""
    currency: str
    price: float
    """Of one slot for an hour, the dearest kind it could get; 0 where slots have none."""
