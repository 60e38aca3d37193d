"""Query language of runs: `lr>1e-4 tag:ablation status:failed,stopped loss.min<2 -user:ada "wide net"`.

Terms are separated by spaces, and a run must satisfy all of them. A term is a column, an operator and one or more values
separated by commas, of which one must match; `-` in front negates it. A term without an operator is a word that must occur in
the run's name. Quotes hold together what contains spaces, commas or operators. This module only parses; it knows no columns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast

from shoal.core.errors import InvalidSpec

Op = Literal[":", "=", "!=", "<", "<=", ">", ">=", "~"]
MAX_TERMS, MAX_VALUES = 50, 200
_PLAIN = r'[^\s":=!<>~,]+'
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_PART = re.compile(rf"{_QUOTED}|{_PLAIN}")
_OPERATOR = re.compile(r"!=|<=|>=|[:=<>~]")
_VALUE = re.compile(rf'{_QUOTED}|[^\s",]+')


@dataclass(frozen=True, slots=True)
class Term:
    """One condition. `column` is empty for a word that is searched in names."""

    column: str
    op: Op
    values: tuple[str, ...]
    is_negated: bool = False


def parse(text: str) -> list[Term]:
    """Return the terms of a query; raise InvalidSpec, with the place, if it cannot be understood."""
    terms: list[Term] = []
    at = 0
    while (at := _skip_space(text, at)) < len(text):
        term, at = _term(text, at)
        terms.append(term)
        if len(terms) > MAX_TERMS:
            raise InvalidSpec(f"A query can have at most {MAX_TERMS} terms.")
    return terms


def write(terms: list[Term]) -> str:
    """Return the query that `parse` reads as these terms."""
    return " ".join(_write(term) for term in terms)


def _term(text: str, at: int) -> tuple[Term, int]:
    start, is_negated = at, text[at] == "-"
    at += is_negated
    column, at = _column(text, at)
    operator = _OPERATOR.match(text, at)
    if operator is None:
        if not column:
            raise _unclear(text, start)
        return Term("", "~", (column,), is_negated), at
    if not column:
        raise _unclear(text, start)
    values, at = _values(text, operator.end())
    if not values:
        raise InvalidSpec(
            f"'{text[start:at]}' has no value.", hint=f'For example: {column}{operator.group()}"some value"'
        )
    return Term(column, cast(Op, operator.group()), tuple(values), is_negated), at


def _column(text: str, at: int) -> tuple[str, int]:
    """Return a column, or a word. Parts follow each other without space: `"my loss".min`."""
    found = ""
    while match := _PART.match(text, at):
        found += _bare(match.group())
        at = match.end()
    return found, at


def _values(text: str, at: int) -> tuple[list[str], int]:
    found: list[str] = []
    while match := _VALUE.match(text, at):
        found.append(_bare(match.group()))
        if len(found) > MAX_VALUES:
            raise InvalidSpec(f"A term of a query can have at most {MAX_VALUES} values.")
        at = match.end()
        if text[at : at + 1] != ",":
            break
        at += 1
    if at < len(text) and not text[at].isspace():
        raise _unclear(text, at)
    return found, at


def _bare(part: str) -> str:
    return re.sub(r"\\(.)", r"\1", part[1:-1], flags=re.DOTALL) if part.startswith('"') else part


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _unclear(text: str, at: int) -> InvalidSpec:
    return InvalidSpec(
        f"The query is not understood at '{text[at : at + 20]}' (character {at + 1}).",
        hint="For example: lr>1e-4 tag:ablation status:failed loss.min<2",
    )


def _write(term: Term) -> str:
    sign = "-" if term.is_negated else ""
    if not term.column:
        return sign + _quote(term.values[0], _PLAIN)
    return f"{sign}{_quote(term.column, _PLAIN)}{term.op}{','.join(_quote(v, _VALUE.pattern) for v in term.values)}"


def _quote(text: str, plain: str) -> str:
    if text and not text.startswith(("-", '"')) and re.fullmatch(plain, text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
