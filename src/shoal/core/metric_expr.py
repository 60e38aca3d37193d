"""Expressions over metrics: `eval/loss - loss`, `log(loss)`, `abs("my metric" - 1) / 2`.

A name is a word that may contain / . _ @ % : and a hyphen in the middle; so operators between names need spaces around them, as in
`loss / tokens`. Other names stand in double quotes. This module only parses; `Expression.names` says what to read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.core.errors import InvalidSpec

MAX_LENGTH, _MAX_DEPTH = 500, 40
FUNCTIONS = ("abs", "exp", "log", "log2", "log10", "sqrt", "min", "max")
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w/@%]))
      | "(?P<quoted>(?:[^"\\]|\\.)*)"
      | (?P<name>[^\W\d][\w/.@%:]*(?:-[\w/.@%:]+)*|\d[\w/.@%:-]*)
      | (?P<op>\*\*|[-+*/(),])
    )""",
    re.VERBOSE,
)
_PLAIN = re.compile(r"[^\W\d][\w/.@%:]*(?:-[\w/.@%:]+)*")


@dataclass(frozen=True, slots=True)
class Node:
    """Part of an expression: a number, a metric, or an operator or function with its operands."""

    kind: str
    """number, metric, or the operator or function."""
    value: Any = None
    operands: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression."""

    text: str
    root: Node

    @property
    def names(self) -> list[str]:
        """Metrics that it needs, in order."""
        return list(dict.fromkeys(_names(self.root)))

    def evaluate(self, values: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]]) -> Any:
        """Return its value for numbers or arrays of the metrics; `functions` has those of `FUNCTIONS`."""
        return _value(self.root, values, functions)


def parse(text: str) -> Expression:
    """Return the expression; raise InvalidSpec, with the place, if it cannot be understood."""
    if len(text) > MAX_LENGTH:
        raise InvalidSpec(f"An expression can have at most {MAX_LENGTH} characters.")
    tokens = _tokens(text)
    reader = _Reader(text, tokens)
    root = reader.sum(0)
    if reader.at < len(tokens):
        raise reader.unclear()
    return Expression(text, root)


def quote(name: str) -> str:
    """Return a metric's name as it is written in an expression."""
    if _PLAIN.fullmatch(name) and name not in FUNCTIONS:
        return name
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


@dataclass(slots=True)
class _Reader:
    text: str
    tokens: list[tuple[str, str, int]]
    at: int = 0

    def sum(self, depth: int) -> Node:
        found = self.product(depth)
        while (op := self.accept("+", "-")) is not None:
            found = Node(op, operands=(found, self.product(depth)))
        return found

    def product(self, depth: int) -> Node:
        found = self.sign(depth)
        while (op := self.accept("*", "/")) is not None:
            found = Node(op, operands=(found, self.sign(depth)))
        return found

    def sign(self, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            raise InvalidSpec("The expression is nested too deeply.")
        if self.accept("-") is not None:
            return Node("neg", operands=(self.sign(depth + 1),))
        base = self.atom(depth)
        return Node("**", operands=(base, self.sign(depth + 1))) if self.accept("**") is not None else base

    def atom(self, depth: int) -> Node:
        if self.at == len(self.tokens):
            raise self.unclear()
        kind, value, _ = self.tokens[self.at]
        self.at += 1
        if kind == "number":
            return Node("number", float(value))
        if kind == "name" and value in FUNCTIONS and self.accept("(") is not None:
            operands = [self.sum(depth + 1)]
            while self.accept(",") is not None:
                operands.append(self.sum(depth + 1))
            self.close()
            least = 2 if value in ("min", "max") else 1
            if len(operands) < least or (least == 1 and len(operands) > 1):
                raise InvalidSpec(f"{value}() takes {'two or more values' if least == 2 else 'one value'}.")
            return Node(value, operands=tuple(operands))
        if kind in ("name", "quoted"):
            return Node("metric", value)
        if value == "(":
            found = self.sum(depth + 1)
            self.close()
            return found
        self.at -= 1
        raise self.unclear()

    def accept(self, *ops: str) -> str | None:
        if self.at < len(self.tokens) and self.tokens[self.at][0] == "op" and self.tokens[self.at][1] in ops:
            self.at += 1
            return self.tokens[self.at - 1][1]
        return None

    def close(self) -> None:
        if self.accept(")") is None:
            raise self.unclear()

    def unclear(self) -> InvalidSpec:
        place = self.tokens[self.at][2] if self.at < len(self.tokens) else len(self.text)
        return _unclear(self.text, place)


def _tokens(text: str) -> list[tuple[str, str, int]]:
    found, at = [], 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise _unclear(text, at)
        kind = str(match.lastgroup)
        value = match.group(kind)
        found.append((kind, re.sub(r"\\(.)", r"\1", value) if kind == "quoted" else value, match.start(kind)))
        at = match.end()
    return found


def _unclear(text: str, at: int) -> InvalidSpec:
    shown = text[at : at + 20] or "the end"
    return InvalidSpec(
        f"The expression is not understood at '{shown}' (character {at + 1}).", hint="For example: eval/loss - loss"
    )


def _names(node: Node) -> list[str]:
    own = [node.value] if node.kind == "metric" else []
    return own + [name for operand in node.operands for name in _names(operand)]


def _value(node: Node, values: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]]) -> Any:
    if node.kind == "number":
        return node.value
    if node.kind == "metric":
        return values[node.value]
    parts = [_value(operand, values, functions) for operand in node.operands]
    return functions[node.kind](*parts)
