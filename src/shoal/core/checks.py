"""What the code check says: one finding, and all of them. The same on the command line, in JSON and in tests."""

from __future__ import annotations

from enum import StrEnum

from shoal.core.schema import View


class Severity(StrEnum):
    ERROR = "error"
    """The job dies, hangs, or trains something else than meant."""
    WARNING = "warning"
    """It may run, and still not do what it should."""
    HINT = "hint"
    """It runs; there is a better way."""


class Finding(View):
    """One thing wrong at one place of the code."""

    rule: str
    """What `# shoal: ignore[…]` calls it."""
    severity: Severity
    path: str
    """Relative to the source's root."""
    line: int
    column: int
    """Both counted from 1."""
    length: int = 1
    """Characters it spans on its line."""
    message: str
    why: str
    fix: str


class CodeCheckView(View):
    """What was looked at, and what was found."""

    entry: str | None = None
    frameworks: list[str] = []
    """How it trains: 'Shoal SDK', 'Hugging Face Trainer' …"""
    files: int = 0
    findings: list[Finding] = []
