"""Split of a cell into Python and IPython lines. `!` and `%` count only where a statement can begin, never inside strings
or brackets."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(r"""\\.|\\$|\#|'''|\"\"\"|'|"|[()\[\]{}]""")
_ESCAPED = re.compile(r"\s*[!%?]")
_HELP = re.compile(r"\s*[%\w][\w.\[\]'\"]*\s*\?{1,2}\s*;?\s*$")
_TARGET = r"[A-Za-z_][\w.]*(?:\[[^\]=]*\])?"
ASSIGNED = re.compile(rf"(\s*{_TARGET}(?:\s*,\s*{_TARGET})*)\s*=\s*([!%].*)", re.S)
"""Pattern of `files = !ls`: the target of the assignment, and the command."""
_AUTOMATIC = re.compile(r"\s*(pip3?|conda|mamba|cd|ls|ll|cat|cp|mv|mkdir|rmdir|rm|pwd|whos?|env|matplotlib)(?=\s|$)")
"""Magics that IPython also knows without their `%`."""
_PLAINLY = re.compile(r"\s*(-\w|$)")


NOT_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)
"""Exceptions of Python's parser for code that is invalid or too deeply nested."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole lines of a cell: Python code, or one command that only IPython understands."""

    line: int
    """Number of its first line, from 1."""
    lines: list[str]
    is_python: bool

    @property
    def command(self) -> str:
        """Command on one line, without the backslashes that continue it."""
        return " ".join(
            [self.lines[0].rstrip("\\").rstrip(), *(x.rstrip("\\").strip() for x in self.lines[1:])]
        ).strip()

    @property
    def indent(self) -> str:
        return self.lines[0][: len(self.lines[0]) - len(self.lines[0].lstrip())]


@dataclass(slots=True)
class _Reading:
    """Scanner for strings, brackets and comments of Python code."""

    quote: str = ""
    depth: int = 0
    is_continued: bool = False
    inside: list[bool] = field(default_factory=list)
    """One flag per line: True if it began inside a string."""

    @property
    def is_fresh(self) -> bool:
        return not self.quote and not self.depth and not self.is_continued

    def feed(self, line: str) -> None:
        self.inside.append(bool(self.quote))
        self.is_continued, at = False, 0
        while found := _TOKEN.search(line, at):
            token, at = found[0], found.end()
            if token == "\\":
                self.is_continued = True
            elif self.quote:
                if token.startswith(self.quote):
                    at = found.start() + len(self.quote)
                    self.quote = ""
            elif token == "#":
                break
            elif token in "([{":
                self.depth += 1
            elif token in ")]}":
                self.depth = max(0, self.depth - 1)
            elif token[0] in "'\"":
                self.quote = token
        if len(self.quote) == 1 and not self.is_continued:
            self.quote = ""  # not closed on its line: Python will report the error


def pieces(source: str) -> Iterator[Piece]:
    lines, reading, python, at = source.split("\n"), _Reading(), list[str](), 0
    while at < len(lines):
        if not (reading.is_fresh and is_ipython(lines[at])):
            reading.feed(lines[at])
            python.append(lines[at])
            at += 1
            continue
        if python:
            yield Piece(at - len(python) + 1, python, True)
            python = []
        end = at
        while lines[end].endswith("\\") and end + 1 < len(lines):
            end += 1
        yield Piece(at + 1, lines[at : end + 1], False)
        at = end + 1
    if python:
        yield Piece(at - len(python) + 1, python, True)


def inside_strings(lines: list[str]) -> list[bool]:
    """Return a flag for each line: True if it begins inside a string and must not be indented."""
    reading = _Reading()
    for line in lines:
        reading.feed(line)
    return reading.inside


def is_ipython(line: str) -> bool:
    """Check whether a line, at which a statement may begin, is an IPython command and not Python."""
    if _ESCAPED.match(line) or _HELP.match(line) or ASSIGNED.match(line):
        return True
    found = _AUTOMATIC.match(line)
    return found is not None and (bool(_PLAINLY.match(line, found.end())) or not _parses(line))


def _parses(line: str) -> bool:
    try:
        ast.parse(line.strip())
    except NOT_PYTHON:
        return False
    return True
