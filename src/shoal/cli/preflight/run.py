"""Preflight of the command line: start it, wait for it, print its report, and remove it in any case."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from shoal.cli.shared.findings import STYLES, counts
from shoal.cli.shared.format import clean, duration, size
from shoal.cli.shared.output import out
from shoal.cli.shared.signals import terminable
from shoal.core.errors import NotFound, Refused

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.core.billing import QuoteView
    from shoal.core.jobs import JobSpec
    from shoal.core.preflight import PreflightFacts, PreflightFinding, PreflightReport, PreflightView
    from shoal.core.states import JobState

_POLL_S = 0.3
_WANTED = ("data", "step", "evaluation", "save")


@contextmanager
def run_preflight(
    client: Client, spec: JobSpec, patience_s: Mapping[JobState, float] | None = None
) -> Iterator[PreflightView | None]:
    """Run a preflight and yield its view when it has ended, or None if that took too long. It is deleted after the block."""
    with terminable():
        begun = client.preflights.start(spec)
        try:
            yield _over(client, begun, patience_s or {})
        finally:
            out.stick("")
            with suppress(NotFound):  # already deleted when the job was submitted
                client.preflights.drop(begun.id)


@contextmanager
def before_submit(client: Client, spec: JobSpec, *, skip: bool) -> Iterator[str | None]:
    """Run a preflight if the job should have one and yield its id (or None) while the job is submitted.

    Raises Refused if the preflight found errors.
    """
    from shoal.core.preflight import PATIENCE_S

    why = None if skip else _reason(client, spec)
    if why is None:
        yield None
        return
    out.info(f"Running a preflight first, as {why} (--no-preflight skips it).")
    with run_preflight(client, spec, PATIENCE_S) as view:
        if view is None:
            out.warn("The preflight takes too long: the job is submitted without it.")
        elif view.report is None:
            out.warn(f"The preflight ended without a report: {clean(view.reason or str(view.status))}")
        else:
            _warn_of_findings(view.report)
            if not view.passed:
                raise Refused(
                    f"Job '{spec.name}' was not submitted: its preflight found {counts(view.report.findings)}.",
                    hint="Fix the errors, or submit it anyway with --no-preflight.",
                )
            out.info(f"Preflight of {view.report.steps} steps: {counts(view.report.findings)}.")
        yield view.id if view and view.report else None


def print_report(report: PreflightReport, quote: QuoteView | None) -> None:
    """Print the whole report, and the price quote if there is one."""
    from shoal.cli.training.quote import lines

    _show_findings(report)
    facts = report.facts
    out.fields(
        [
            ("Reached", ", ".join(report.phases) or "nothing"),
            ("Not seen", ", ".join(p for p in _WANTED if p not in report.phases) or None),
            ("Parameters", f"{facts.parameters:,}" if facts.parameters else None),
            ("Memory", _memory(facts)),
            ("Disk", _disk(facts)),
            ("Step time", _step(facts)),
        ]
    )
    for trouble in facts.troubles:
        out.dim(f"  not checked: {clean(trouble)}")
    out.info(f"Preflight of {report.steps} steps: {counts(report.findings)}.")
    for line in lines(quote) if quote else []:
        out.info(line)


def _warn_of_findings(report: PreflightReport) -> None:
    """Print the findings on stderr while a job is submitted: stdout is for the job's id."""
    for finding in report.findings:
        say = out.error if finding.severity == "error" else out.warn
        say(f"{_where(finding)}{clean(finding.message)} [{finding.rule}]")
        out.dim(f"  why: {clean(finding.why)}")
        out.dim(f"  fix: {clean(finding.fix)}")


def _where(finding: PreflightFinding) -> str:
    return f"{clean(finding.path)}:{finding.line}: " if finding.path else ""


def _show_findings(report: PreflightReport) -> None:
    for finding in report.findings:
        out.styled(
            (_where(finding), "bold"),
            (finding.severity, STYLES[finding.severity]),
            f": {clean(finding.message)} ",
            (f"[{finding.rule}]", "dim"),
        )
        out.styled("  why: ", (clean(finding.why), "dim"))
        out.line(f"  fix: {clean(finding.fix)}")
        out.line()


def _reason(client: Client, spec: JobSpec) -> str | None:
    """Return why a job should have a preflight, or None. For most jobs this is known without asking the server."""
    if spec.max_nodes == 1 and not spec.time_limit_s and not spec.expected_s:
        return None
    try:
        advice = client.preflights.advise(spec)
    except NotFound:  # an older server without preflights
        return None
    return advice.why if advice.wanted else None


def _over(client: Client, begun: PreflightView, patience_s: Mapping[JobState, float]) -> PreflightView | None:
    began, told = time.monotonic(), ""
    while not (view := client.preflights.get(begun.id)).status.is_terminal:
        if time.monotonic() - began > patience_s.get(view.status, float("inf")):
            return None
        state = f"waits: {view.waiting}" if view.waiting else str(view.status)
        if out.talks_to_terminal:
            out.stick(f"Preflight {clean(state)} …")
        elif view.waiting and state != told:
            told = state
            out.dim(f"  preflight {clean(state)}")
        time.sleep(_POLL_S)
    return view


def _memory(facts: PreflightFacts) -> str | None:
    if facts.memory_needed is None or not facts.limit_bytes:
        return None
    parts = [
        f"{what} {size(count)}"
        for what, count in (
            ("weights", facts.parameter_bytes),
            ("gradients", facts.gradient_bytes),
            ("optimizer", facts.optimizer_bytes),
        )
        if count
    ]
    inside = f" ({', '.join(parts)})" if parts else ""
    return f"{size(facts.memory_needed)} of the {facts.on}'s {size(facts.limit_bytes)}{inside}"


def _disk(facts: PreflightFacts) -> str | None:
    if facts.disk_needed is None or facts.disk_free is None or facts.checkpoint_bytes is None:
        return None
    return (
        f"{size(facts.disk_needed)} of {size(facts.disk_free)} free (a checkpoint takes {size(facts.checkpoint_bytes)})"
    )


def _step(facts: PreflightFacts) -> str | None:
    if facts.step_s is None:
        return None
    first = f", the first after {duration(facts.first_step_s)}" if facts.first_step_s else ""
    return f"{facts.step_s * 1000:.3g} ms{first}" if facts.step_s < 1 else f"{facts.step_s:.3g} s{first}"
