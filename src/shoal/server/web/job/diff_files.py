"""Comparison of the code of two jobs: which files differ, how, and whether the difference can matter."""

from __future__ import annotations

import difflib
import io
import tokenize
from collections.abc import Callable, Mapping

from shoal.core.artifacts import FileEntry, Manifest
from shoal.core.diffs import FileChange

MOST_FILES = 50
_MOST_BYTES = 256 << 10
_MOST_LINES = 400
_SILENT = (".md", ".rst", ".gitignore", ".shoalignore", "LICENSE", ".png", ".jpg", ".svg")
"""Files that no script is likely to read."""
_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER}

Read = Callable[[FileEntry], bytes]
Hide = Callable[[str], str]


def compare(first: Manifest, second: Manifest, read: Read, hide: Hide) -> tuple[list[FileChange], int]:
    """Return the changed files, and the number of further ones that are not listed. `hide` removes secrets from a text."""
    before, after = ({f.path: f for f in m.files} for m in (first, second))
    paths = [p for p in sorted(before.keys() | after.keys()) if _content(before.get(p)) != _content(after.get(p))]
    paths.sort(key=lambda p: p.endswith(_SILENT))
    return [_file(p, before, after, read, hide) for p in paths[:MOST_FILES]], max(0, len(paths) - MOST_FILES)


def _content(file: FileEntry | None) -> tuple[str, ...] | None:
    return None if file is None else tuple(c.hash for c in file.chunks)


def _file(
    path: str, before: Mapping[str, FileEntry], after: Mapping[str, FileEntry], read: Read, hide: Hide
) -> FileChange:
    a, b = before.get(path), after.get(path)
    change = FileChange(path=path, kind="added" if a is None else "removed" if b is None else "changed")
    change.matters = not path.endswith(_SILENT)
    texts = [_text(entry, read) for entry in (a, b)]
    if texts[0] is None or texts[1] is None:
        change.note = "not text, or too long to be shown"
        return change
    old, new = texts[0], texts[1]
    if a and b and path.endswith(".py") and _meaning(old) == _meaning(new):
        change.matters, change.note = False, "only comments and layout"
    lines = list(
        difflib.unified_diff(hide(old).splitlines(), hide(new).splitlines(), f"a/{path}", f"b/{path}", lineterm="")
    )
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"… {len(lines) - _MOST_LINES} more lines"]
    change.diff = "\n".join(lines)
    if not lines:
        change.note = "differs only in secrets" if old != new else None
    return change


def _text(entry: FileEntry | None, read: Read) -> str | None:
    """Return the text of a file; None if it cannot be shown, empty if it does not exist."""
    if entry is None:
        return ""
    if entry.size > _MOST_BYTES:
        return None
    data = read(entry)
    try:
        return None if b"\0" in data else data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _meaning(text: str) -> list[tuple[int, str]] | str:
    """Return the tokens of a script without comments and blank lines; the text itself if it is not valid Python."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError, ValueError):
        return text
    return [
        (t.type, "" if t.type in (tokenize.INDENT, tokenize.NEWLINE) else t.string)
        for t in tokens
        if t.type not in _LAYOUT
    ]
