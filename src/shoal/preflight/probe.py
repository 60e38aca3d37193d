"""State of a preflight: its request, its observations so far, and when they are sufficient."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from .rules import COMES_OF, RULES

STEPS = 4
"""Number of steps: the first is slower than all others, so three are measured."""
PHASES = ("import", "arguments", "data", "forward", "backward", "step", "evaluation", "save", "load")
_MOST_FINDINGS = 40
_LONGEST = 1000


class Done(SystemExit):
    """Raised to end the script when enough was observed. A SystemExit: `except Exception` does not catch it."""


@dataclass(slots=True, kw_only=True)
class ProbeSettings:
    report: str
    """Path of the report."""
    output: str = ""
    """Output folder of the job, whose files are kept."""
    nodes: int = 1
    accels: int = 1
    keep_last: int | None = None
    limit_s: float = 300.0
    spare_s: float = 5.0
    """Seconds after the first step to wait for the script's own evaluation and checkpoint."""
    memory: int | None = None
    """Memory of the machine in bytes; None to ask the machine."""
    disk: int | None = None
    """Free disk space in bytes; None to ask the machine."""

    @property
    def workers(self) -> int:
        return self.nodes * self.accels


@dataclass(slots=True)
class Finding:
    rule: str
    severity: str
    message: str
    why: str
    fix: str
    path: str | None = None
    line: int | None = None


@dataclass(slots=True)
class Seen:
    """Counters of events; copies are compared to see what has happened since."""

    steps: int = 0
    backwards: int = 0
    forwards: int = 0
    """Number of calls of whole models."""
    evaluations: int = 0
    """Number of these calls without gradients."""


@dataclass(slots=True)
class Probe:
    asked: ProbeSettings
    root: str = field(default_factory=lambda: os.path.realpath(os.getcwd()))  # noqa: PTH109
    pid: int = field(default_factory=os.getpid)
    began_at: float = field(default_factory=time.monotonic)
    seen: Seen = field(default_factory=Seen)
    phases: set[str] = field(default_factory=set)
    facts: dict[str, Any] = field(default_factory=dict)
    findings: dict[tuple[str, str], Finding] = field(default_factory=dict)
    first_step_at: float | None = None
    in_pass: bool = False
    """True inside a loop over data that the preflight will end early."""
    cut: bool = False
    """True if a loop was ended early."""
    saving: bool = False
    ended_over_unused: bool = False
    """True if DistributedDataParallel raised an error about unused parameters."""
    stopping: bool = False
    finishing: bool = False
    complete: bool = False
    most_batches: int = 0
    """Number of batches of the largest loader that was used."""
    at_end: list[Any] = field(default_factory=list)
    """Functions without arguments that are called when the script has ended."""

    @property
    def is_here(self) -> bool:
        """True in the main thread of the preflight's own process, not in forked processes or other threads."""
        return os.getpid() == self.pid and threading.current_thread() is threading.main_thread()

    @property
    def has_enough(self) -> bool:
        if self.seen.steps < STEPS or self.first_step_at is None:
            return False
        return {"evaluation", "save"} <= self.phases or time.monotonic() - self.first_step_at > self.asked.spare_s

    @property
    def has_errors(self) -> bool:
        return any(finding.severity == "error" for finding in self.findings.values())

    def reach(self, phase: str) -> None:
        if phase not in self.phases and os.getpid() == self.pid:
            self.phases.add(phase)
            self.write()

    def find(
        self, rule: str, message: str, *, severity: str | None = None, where: tuple[str, int] | None = None
    ) -> None:
        """Record a finding. Each rule is recorded once, at the first place; consequences of known findings are skipped."""
        known_causes = {name for name, _ in self.findings} & set(COMES_OF.get(rule, ()))
        if os.getpid() != self.pid or len(self.findings) >= _MOST_FINDINGS or known_causes:
            return
        known = RULES[rule]
        path, line = where or (None, None)
        key = (rule, message if rule == "crash" else "")
        if key not in self.findings:
            severity = severity or known.severity
            self.findings[key] = Finding(rule, severity, message[:_LONGEST], known.why, known.fix, path, line)
            self.write()

    def doubt(self, text: str) -> None:
        """Record a failure of the preflight itself, which must not block the job."""
        self.facts.setdefault("troubles", []).append(text[:300])

    def here(self) -> tuple[str, int] | None:
        """Return the path and line of the script's own code that is running, or None."""
        frame = sys._getframe(1)
        while frame is not None:
            if (path := self.own(frame.f_code.co_filename)) is not None:
                return path, frame.f_lineno
            frame = frame.f_back  # type: ignore[assignment]
        return None

    def own(self, filename: str) -> str | None:
        """Return the path in the source of a file of the job's code; None for other files."""
        if filename.startswith("<"):  # the interpreter's own, such as <frozen importlib._bootstrap>
            return None
        path = os.path.realpath(filename)
        inside = path.startswith(self.root + os.sep) and "site-packages" not in path
        return os.path.relpath(path, self.root) if inside else None

    def stop(self) -> None:
        self.stopping = True
        raise Done(0)

    def write(self) -> None:
        """Write the report now, as the process may be killed at any time."""
        report = {
            "complete": self.complete,
            "phases": [phase for phase in PHASES if phase in self.phases],
            "steps": self.seen.steps,
            "facts": self.facts,
            "findings": [asdict(finding) for finding in self.findings.values()],
        }
        aside = f"{self.asked.report}.new"
        with open(aside, "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump(report, file)
        os.replace(aside, self.asked.report)  # noqa: PTH105
