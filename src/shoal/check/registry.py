"""How a rule is written: a generator of hits, with its id, why it matters and what to do."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shoal.check.asked import Asked
from shoal.check.module import Module
from shoal.check.program import Program
from shoal.core.checks import Severity


@dataclass(frozen=True, slots=True)
class Hit:
    """A place in a file, and what is wrong there. What is not given is the rule's own."""

    module: Module
    node: ast.AST
    message: str
    severity: Severity | None = None
    why: str | None = None
    fix: str | None = None


Finder = Callable[[Program, Asked], Iterator[Hit]]


@dataclass(frozen=True, slots=True)
class Rule:
    id: str
    severity: Severity
    why: str
    fix: str
    find: Finder


RULES: dict[str, Rule] = {}


def rule(id: str, severity: Severity, *, why: str, fix: str) -> Callable[[Finder], Finder]:
    """Register a finder."""

    def register(find: Finder) -> Finder:
        RULES[id] = Rule(id, severity, why, fix, find)
        return find

    return register
