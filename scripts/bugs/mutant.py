"""One planted bug of ./scripts/mutants."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    name: str
    fault: str
    """Effect of the bug, in a few words."""
    file: str
    old: str
    """Found exactly once in the file."""
    new: str
    tests: tuple[str, ...]
    """Tests that should notice the bug, for pytest: file::test, or whole files."""
    tier: str = "fast"
    """The tier of these tests: fast, process or cluster."""
