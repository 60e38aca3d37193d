"""Conversion of a script's arguments between one line and rows of a form; both give the same words in the same order."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from enum import StrEnum

from shoal.core.errors import InvalidSpec
from shoal.core.schema import View

_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_YES_NO = frozenset({"true", "false", "True", "False"})


class Kind(StrEnum):
    """Kind of a value; the form checks it."""

    TEXT = "text"
    INTEGER = "integer"
    DECIMAL = "decimal"
    YES_NO = "true/false"
    SWITCH = "switch"
    """An option without a value, such as --fp16."""


class Row(View):
    name: str = ""
    """Option, such as --lr; empty for a positional argument. With '=' at its end, name and value are one word."""
    value: str = ""
    kind: Kind = Kind.TEXT


def split_line(line: str, where: str = "Arguments") -> list[str]:
    """Split a line into words as a shell does. `where`: the field of the form, for errors."""
    try:
        return shlex.split(line)
    except ValueError:
        raise InvalidSpec(f"{where}: a quotation mark is not closed.") from None


def join_words(words: Sequence[str]) -> str:
    return shlex.join(words)


def to_rows(words: Sequence[str]) -> list[Row]:
    rows, rest = [], list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if not _is_option(word):
            rows.append(Row(value=word, kind=_kind(word)))
        elif equals and word.startswith("--"):
            rows.append(Row(name=f"{name}=", value=value, kind=_kind(value)))
        elif rest and not _is_option(rest[0]):
            value = rest.pop(0)
            rows.append(Row(name=word, value=value, kind=_kind(value)))
        else:
            rows.append(Row(name=word, kind=Kind.SWITCH))
    return rows


def to_words(rows: Sequence[Row]) -> list[str]:
    """Return the words of rows, without empty rows. Raise InvalidSpec for a value that is not of its kind."""
    words: list[str] = []
    for row in rows:
        if not row.name.strip():
            if row.value:
                _check(row, "Arguments")
                words.append(row.value)
            continue
        name = row.name if row.name.startswith("-") else f"--{row.name.strip()}"
        _check(row, name.rstrip("="))
        if row.kind is Kind.SWITCH:
            words.append(name)
        elif name.endswith("="):
            words.append(name + row.value)
        else:
            words += [name, row.value]
    return words


def _is_option(word: str) -> bool:
    return len(word) > 1 and word.startswith("-") and not _NUMBER.fullmatch(word)


def _kind(value: str) -> Kind:
    if _WHOLE.fullmatch(value):
        return Kind.INTEGER
    if _NUMBER.fullmatch(value):
        return Kind.DECIMAL
    return Kind.YES_NO if value in _YES_NO else Kind.TEXT


def _check(row: Row, shown: str) -> None:
    problem = None
    if row.kind is Kind.INTEGER and not _WHOLE.fullmatch(row.value):
        problem = f"{row.value!r} is not a whole number"
    elif row.kind is Kind.DECIMAL and not _NUMBER.fullmatch(row.value):
        problem = f"{row.value!r} is not a number"
    elif row.kind is Kind.YES_NO and row.value not in _YES_NO:
        problem = f"{row.value!r} is neither true nor false"
    elif row.kind is Kind.SWITCH and row.value:
        problem = "a switch takes no value"
    if problem:
        raise InvalidSpec(f"{shown}: {problem}.")
