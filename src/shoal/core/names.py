"""Rules for names that people choose, and "did you mean" suggestions for mistyped ones."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from shoal.core.errors import InvalidName

MAX_NAME = 63
NAME_PATTERN = rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME - 1}}}"
_NAME = re.compile(NAME_PATTERN)


def check_name(name: str, what: str = "name") -> str:
    """Return the name, or raise InvalidName if it does not follow the rules. `what` is the kind of name for the message."""
    if not _NAME.fullmatch(name):
        shown = name if len(name) <= 80 else name[:77] + "…"
        raise InvalidName(f"{shown!r} is not a usable {what}. {InvalidName.__doc__}")
    return name


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?` to append to an error message, or an empty string."""
    close = difflib.get_close_matches(word, list(known), n=3, cutoff=0.6)
    return f" Did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
