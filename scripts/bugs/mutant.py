"""One planted bug of ./scripts/mutants."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    name: str
    fault: str
    """What would go wrong, in a few words."""
    file: str
    old: str
    """Found exactly once in the file."""
    new: str
    tests: tuple[str, ...]
    """For pytest: file::test of those that should notice, or whole files."""
    tier: str = "fast"
    """The tier of these tests: fast, process or cluster."""
