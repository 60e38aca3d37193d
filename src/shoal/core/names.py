"""What people may call things, and "did you mean" when they mistype."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from shoal.core.errors import InvalidName

MAX_NAME = 63
NAME_PATTERN = rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME - 1}}}"
_NAME = re.compile(NAME_PATTERN)


def check_name(name: str, what: str = "name") -> str:
    if not _NAME.fullmatch(name):
        shown = name if len(name) <= 80 else name[:77] + "…"
        raise InvalidName(f"{shown!r} is not a usable {what}. {InvalidName.__doc__}")
    return name


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` or nothing, to end an error message with."""
    close = difflib.get_close_matches(word, list(known), n=3, cutoff=0.6)
    return f" Did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
