"""Preflights on the wire: a few true steps of a job, made before it is submitted, and what was found in them."""

from __future__ import annotations

from pydantic import Field

from shoal.core.checks import Severity
from shoal.core.schema import View
from shoal.core.states import JobState

VARIABLE = "SHOAL_PREFLIGHT"
"""In the environment of a job it says that this one is a preflight, and for what size."""
PATIENCE_S = {JobState.QUEUED: 60.0, JobState.STARTING: 120.0, JobState.RUNNING: 120.0}
"""How long a job that nobody asked to try waits for a slot for that, and for its end."""


class PreflightFinding(View):
    """One thing that was seen to go wrong, or that surely will."""

    rule: str
    severity: Severity
    message: str
    why: str
    fix: str
    path: str | None = None
    """Of the line of the script's own code, relative to the source's root; None where no line is to blame."""
    line: int | None = None


class PreflightFacts(View):
    """What was measured on one worker. Sizes are bytes; None where it was not reached."""

    torch: str | None = None
    parameters: int | None = None
    """Numbers that are trained."""
    parameter_bytes: int | None = None
    gradient_bytes: int | None = None
    optimizer_bytes: int | None = None
    peak_bytes: int | None = None
    """Of one worker, at the batch size that was asked for."""
    memory_needed: int | None = None
    """At the size that was asked for: of all workers of a node, or of one GPU."""
    limit_bytes: int | None = None
    """What there is of it."""
    on: str | None = None
    """Whose memory: the machine's, or a GPU's."""
    checkpoint_bytes: int | None = None
    disk_needed: int | None = None
    disk_free: int | None = None
    step_s: float | None = None
    """The median of those after the first."""
    first_step_s: float | None = None
    """From the start of the script to the end of its first step."""
    batches_per_epoch: int | None = None
    batches_per_step: int | None = None
    total_steps: int | None = None
    """What the whole job would make on one worker, as far as its arguments tell."""
    troubles: list[str] = []
    """What could not be looked at."""


class PreflightReport(View):
    complete: bool = False
    """False where the script ended before all was said."""
    phases: list[str] = []
    """What was reached: import, arguments, data, forward, backward, step, evaluation, save, load."""
    steps: int = 0
    facts: PreflightFacts = Field(default_factory=PreflightFacts)
    findings: list[PreflightFinding] = Field(default=[], max_length=100)

    @property
    def passed(self) -> bool:
        return all(finding.severity is not Severity.ERROR for finding in self.findings)


class PreflightView(View):
    """A preflight that waits, runs or is over."""

    id: str
    name: str
    status: JobState
    waiting: str | None = None
    reason: str | None = None
    report: PreflightReport | None = None
    """None until it is over."""
    passed: bool | None = None


class PreflightAdvice(View):
    """Whether a job should have one before it is submitted."""

    wanted: bool
    why: str
