"""Results of the code check: single findings and the whole report. The same on the command line, in JSON and in tests."""

from __future__ import annotations

from enum import StrEnum

from shoal.core.schema import View


class Severity(StrEnum):
    ERROR = "error"
    """The job crashes, hangs or trains something other than intended."""
    WARNING = "warning"
    """The job may run but not do what was intended."""
    HINT = "hint"
    """The job runs; there is a better way."""


class Finding(View):
    """One problem at one place in the code."""

    rule: str
    """Name of the rule, as in `# shoal: ignore[RULE]`."""
    severity: Severity
    path: str
    """Path relative to the root of the source."""
    line: int
    column: int
    """Column; lines and columns are counted from 1."""
    length: int = 1
    """Number of characters on the line that the finding covers."""
    message: str
    why: str
    fix: str


class CodeCheckView(View):
    """The checked files and the findings."""

    entry: str | None = None
    frameworks: list[str] = []
    """Training frameworks found in the code: 'Shoal SDK', 'Hugging Face Trainer', …"""
    files: int = 0
    findings: list[Finding] = []
