"""The planted bugs of ./scripts/mutants, by subject.

To add one, append a `Mutant` to one of these files, with a text that is found exactly once and the one or two tests that
should notice, and run `./scripts/mutants -k NAME`. tests/unit/testing/test_mutants.py checks the texts and the tests' names.
"""

from __future__ import annotations

from planted.access import ACCESS
from planted.durability import DURABILITY
from planted.mutant import Mutant
from planted.numbers import NUMBERS
from planted.placement import PLACEMENT

__all__ = ["MUTANTS", "Mutant"]

MUTANTS: tuple[Mutant, ...] = (*DURABILITY, *ACCESS, *NUMBERS, *PLACEMENT)
