"""The planted bugs of ./scripts/mutants, by subject.

To add one, append a `Mutant` to one of these files, with a text that is found exactly once and the one or two tests that
should notice, and run `./scripts/mutants -k NAME`. tests/unit/testing/test_mutants.py checks the texts and the tests' names.
"""

from __future__ import annotations

from bugs.access import ACCESS
from bugs.durability import DURABILITY
from bugs.mutant import Mutant
from bugs.numbers import NUMBERS
from bugs.placement import PLACEMENT

__all__ = ["MUTANTS", "Mutant"]

MUTANTS: tuple[Mutant, ...] = (*DURABILITY, *ACCESS, *NUMBERS, *PLACEMENT)
