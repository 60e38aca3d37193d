"""Live view of a job: its output on stdout, changes of its state on stderr, and its progress as the last line."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from shoal.cli.shared.format import bar, clean, clean_log, duration
from shoal.cli.shared.output import json_line, out
from shoal.core.errors import JobFailed, Unreachable
from shoal.core.states import JobState

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.core.jobs import JobSummary, JobView, LogLine, Progress

DETACHED = 130
LINES_PER_WRITE = 1000
TALK_EVERY_S = 15.0
"""Seconds between two progress lines when the output is not a terminal."""


@dataclass(slots=True)
class LogOptions:
    """Filter and format of log lines."""

    node: int | None = None
    rank: int | None = None
    since: datetime | None = None
    attempt: int | None = None
    timestamps: bool = False
    num_workers: int = 1

    def print(self, lines: Iterable[LogLine]) -> None:
        """Print lines in large blocks: flushing each of a million lines would take longer than fetching them."""
        shown: list[str] = []
        for line in lines:
            if self.attempt is None or line.attempt == self.attempt:
                shown.append(self._render(line))
            if len(shown) >= LINES_PER_WRITE:
                out.write("".join(shown))
                shown.clear()
        if shown:
            out.write("".join(shown))

    def _render(self, line: LogLine) -> str:
        if out.json:
            return json_line(line)
        text = clean_log(line.text) if out.is_terminal else line.text
        return f"{self._prefix(line)}{text}\n"

    def _prefix(self, line: LogLine) -> str:
        """Return the prefix of a line: the time if requested, and the rank or node if the job has several workers."""
        stamp = (
            f"{datetime.fromtimestamp(line.at).astimezone().isoformat(timespec='milliseconds')} "
            if self.timestamps
            else ""
        )
        if self.num_workers == 1:
            return stamp
        if line.rank is None:
            return f"{stamp}[node{line.node}] "
        return stamp if self.rank is not None else f"{stamp}[rank{line.rank}] "


def follow_job(client: Client, job: JobSummary, options: LogOptions) -> int:
    """Follow a job until it ends (return 0 or raise JobFailed) or until ^C, which only detaches."""
    try:
        _Watch(client, job, options).run()
        view = client.jobs.get(job.id)
    except KeyboardInterrupt:
        return detach(f"Job '{job.name}'", see=f"training logs {job.name} -f", stop=f"training stop {job.name}")
    return finish(view)


def detach(what: str, *, see: str, stop: str) -> int:
    """Say after ^C that a job or sweep continues, and which commands show or stop it; return the exit code."""
    out.end_line()
    out.info(f"Detached. {what} continues.")
    out.info(f"  follow it again:  {out.prog} {see}")
    out.info(f"  stop it:          {out.prog} {stop}")
    return DETACHED


def finish(job: JobView) -> int:
    """Print the end of a successful job and return 0; raise JobFailed for any other end."""
    if job.status is JobState.SUCCEEDED:
        out.status("succeeded", job.status, f"after {run_time(job)}")
        return 0
    why = clean(job.reason) if job.reason else "no reason was given"
    raise JobFailed(f"Job '{job.name}' {job.status}: {why}", hint=f"{out.prog} training inspect {job.name}")


def run_time(job: JobSummary, now: datetime | None = None) -> str | None:
    from shoal.core.schema import utcnow

    if job.started_at is None:
        return None
    return duration(((job.ended_at or now or utcnow()) - job.started_at).total_seconds())


def progress_text(progress: Progress, *, with_bar: bool = False) -> str:
    """Return the progress of a job: `━━━╌╌ 40 %  step 400 of 1000, 2 min left`."""
    parts = []
    if progress.fraction is not None:
        parts.append((f"{bar(progress.fraction)} " if with_bar else "") + f"{progress.fraction:.0%} ")
    parts.append(f"{progress.unit} {progress.step}" + (f" of {progress.total}" if progress.total else ""))
    if progress.eta_s is not None and (progress.fraction or 0) < 1:
        parts.append(f", {_left(progress)} left")
    return clean("".join(parts))


def _left(progress: Progress) -> str:
    """Return the time left: `2 min`, or `2 min (1 min 40 s to 3 min)` if the pace varies."""
    low, high = progress.eta_low_s, progress.eta_high_s
    left = duration(progress.eta_s or 0.0)
    if low is None or high is None or duration(low) == duration(high):
        return left
    return f"{left} ({duration(low)} to {duration(high)})"


@dataclass(slots=True)
class _Watch:
    client: Client
    job: JobSummary
    options: LogOptions
    clock: Callable[[], float] = time.monotonic
    _told: tuple[str, int] | None = None
    _told_progress_at: float = field(default=0.0)
    _ends_told: int = 0
    """Number of the last attempt whose end was printed."""

    def run(self) -> None:
        from shoal.client.follow import Back, Changed, Lines, Lost

        options = self.options
        events = self.client.jobs.follow(self.job.id, node=options.node, rank=options.rank, since=options.since)
        try:
            for event in events:
                match event:
                    case Lines(lines=lines):
                        options.print(lines)
                    case Changed(job=job):
                        self._print_change(job)
                    case Lost(error=error):
                        out.warn(f"{error.message} The job continues; waiting for the server.")
                        if isinstance(error, Unreachable) and error.hint:
                            out.dim(f"  {error.hint}")
                    case Back():
                        out.info("The server is back.")
        finally:
            out.stick("")

    def _print_change(self, job: JobSummary) -> None:
        self.job = job
        if (job.status, job.attempts) != self._told:
            self._told = (job.status, job.attempts)
            self._print_restart(job)
            if not job.status.is_terminal:
                out.status(f"● {job.status}", job.status, self._detail(job))
        if job.progress is not None and not job.status.is_terminal:
            self._print_progress(job.progress)

    def _print_restart(self, job: JobSummary) -> None:
        """Print why the previous attempt ended. The end of the last attempt is reported as the end of the job."""
        ended = job.attempts if job.status is JobState.QUEUED else job.attempts - 1
        if job.status.is_terminal or ended <= self._ends_told:
            return
        self._ends_told = ended
        try:
            attempts = self.client.jobs.get(job.id).attempt_list
        except Unreachable:
            return  # optional information: not worth failing for
        why = next((attempt.reason for attempt in attempts if attempt.number == ended), None)
        if why:
            out.warn(f"attempt {ended} ended: {clean(why)}")

    def _detail(self, job: JobSummary) -> str:
        if job.status is JobState.QUEUED:
            try:
                return clean(self.client.jobs.get(job.id).waiting or "")
            except Unreachable:
                return ""  # optional information: not worth failing for
        return f"(attempt {job.attempts})" if job.attempts > 1 else ""

    def _print_progress(self, progress: Progress) -> None:
        if out.talks_to_terminal and out.is_terminal:
            out.stick(progress_text(progress, with_bar=True))
        elif self.clock() - self._told_progress_at >= TALK_EVERY_S:
            self._told_progress_at = self.clock()
            out.dim(f"  {progress_text(progress)}")
