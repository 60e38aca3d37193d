"""Registry of rules. A rule is a generator of hits with an id, a severity, a reason (why) and a remedy (fix)."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shoal.check.job_facts import JobFacts
from shoal.check.module import Module
from shoal.check.program import Program
from shoal.core.checks import Severity


@dataclass(frozen=True, slots=True)
class Hit:
    """Place in a file and the problem there. Omitted fields are those of the rule."""

    module: Module
    node: ast.AST
    message: str
    severity: Severity | None = None
    why: str | None = None
    fix: str | None = None


Finder = Callable[[Program, JobFacts], Iterator[Hit]]


@dataclass(frozen=True, slots=True)
class Rule:
    id: str
    severity: Severity
    why: str
    fix: str
    find: Finder


RULES: dict[str, Rule] = {}


def rule(id: str, severity: Severity, *, why: str, fix: str) -> Callable[[Finder], Finder]:
    """Register a finder as a rule."""

    def register(find: Finder) -> Finder:
        RULES[id] = Rule(id, severity, why, fix, find)
        return find

    return register
