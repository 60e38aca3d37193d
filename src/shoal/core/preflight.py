"""Preflights on the wire: a few real steps of a job, run before it is submitted, and their findings."""

from __future__ import annotations

from pydantic import Field

from shoal.core.checks import Severity
from shoal.core.schema import View
from shoal.core.states import JobState

VARIABLE = "SHOAL_PREFLIGHT"
"""Environment variable that marks a job as a preflight and says for which size."""
PATIENCE_S = {JobState.QUEUED: 60.0, JobState.STARTING: 120.0, JobState.RUNNING: 120.0}
"""Seconds to wait in each state for a preflight that the user did not request; then the job is submitted without it."""


class PreflightFinding(View):
    """One problem that was observed or is certain to happen."""

    rule: str
    severity: Severity
    message: str
    why: str
    fix: str
    path: str | None = None
    """File of the script's own code, relative to the root of the source; None if no line is to blame."""
    line: int | None = None


class PreflightFacts(View):
    """Measurements of one worker. Sizes are in bytes; None if that phase was not reached."""

    torch: str | None = None
    parameters: int | None = None
    """Number of trained parameters."""
    parameter_bytes: int | None = None
    gradient_bytes: int | None = None
    optimizer_bytes: int | None = None
    peak_bytes: int | None = None
    """Peak memory of one worker at the requested batch size."""
    memory_needed: int | None = None
    """Memory needed at the requested size: of all workers of a node, or of one GPU."""
    limit_bytes: int | None = None
    """Memory that is available for it."""
    on: str | None = None
    """Kind of memory: the machine's or a GPU's."""
    checkpoint_bytes: int | None = None
    disk_needed: int | None = None
    disk_free: int | None = None
    step_s: float | None = None
    """Median duration of the steps after the first, in seconds."""
    first_step_s: float | None = None
    """Seconds from the start of the script to the end of its first step."""
    batches_per_epoch: int | None = None
    batches_per_step: int | None = None
    total_steps: int | None = None
    """Steps the whole job would make on one worker, as far as its arguments say."""
    troubles: list[str] = []
    """Checks that could not be made."""


class PreflightReport(View):
    """Findings and measurements of a preflight."""

    complete: bool = False
    """False if the script ended before the preflight was finished."""
    phases: list[str] = []
    """Phases that were reached: import, arguments, data, forward, backward, step, evaluation, save, load."""
    steps: int = 0
    facts: PreflightFacts = Field(default_factory=PreflightFacts)
    findings: list[PreflightFinding] = Field(default=[], max_length=100)

    @property
    def passed(self) -> bool:
        """Return whether there is no finding of severity error."""
        return all(finding.severity is not Severity.ERROR for finding in self.findings)


class PreflightView(View):
    """A preflight that is waiting, running or finished."""

    id: str
    name: str
    status: JobState
    waiting: str | None = None
    reason: str | None = None
    report: PreflightReport | None = None
    """Its report; None until it has finished."""
    passed: bool | None = None


class PreflightAdvice(View):
    """Recommendation whether to run a preflight before a job is submitted."""

    wanted: bool
    why: str
