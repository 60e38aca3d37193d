"""Syntax highlighting: code as lines of (class, text), which the template escapes. No HTML is generated here."""

from __future__ import annotations

import functools
from typing import Any

Piece = tuple[str, str]
"""(class, text); the class is empty for plain text."""

MOST = 40 << 10
"""Maximum number of characters that are highlighted; longer code is shown plain, because highlighting would take too long."""
_CLASSES = (
    ("Comment", "hc"),
    ("Literal.String.Doc", "hc"),
    ("Literal.String", "hs"),
    ("Literal.Number", "hn"),
    ("Keyword", "hk"),
    ("Operator.Word", "hk"),
    ("Name.Decorator", "hd"),
    ("Name.Builtin", "hb"),
    ("Name.Exception", "hb"),
    ("Name.Function", "hf"),
    ("Name.Class", "hf"),
    ("Name.Tag", "hk"),
    ("Name.Attribute", "hd"),
)


@functools.lru_cache(maxsize=32)
def lines(path: str, text: str) -> list[list[Piece]]:
    """Return each line of a file in pieces; plain if the language is unknown or the file is long."""
    found: list[list[Piece]] = [[]]
    for kind, piece in _tokens(path, text):
        for index, part in enumerate(piece.split("\n")):
            if index:
                found.append([])
            if not part:
                continue
            line = found[-1]
            if line and line[-1][0] == kind:
                line[-1] = (kind, line[-1][1] + part)
            else:
                line.append((kind, part))
    if len(found) > 1 and not found[-1]:
        found.pop()
    return found


def _tokens(path: str, text: str) -> list[Piece]:
    lexer = _lexer(path) if len(text) <= MOST else None
    if lexer is None:
        return [("", text)]
    return [(_class_of(str(kind)), piece) for kind, piece in lexer.get_tokens(text)]


def _lexer(path: str) -> Any:
    # Only a page that shows code pays for this import.
    from pygments.lexers import get_lexer_for_filename  # type: ignore[import-untyped]
    from pygments.util import ClassNotFound  # type: ignore[import-untyped]

    try:
        return get_lexer_for_filename(path.rpartition("/")[2], stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


@functools.cache
def _class_of(kind: str) -> str:
    short = kind.removeprefix("Token.")
    return next((name for prefix, name in _CLASSES if short.startswith(prefix)), "")
