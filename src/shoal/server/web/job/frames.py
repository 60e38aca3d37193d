"""Frames of a traceback that lie in the code of the job, so that its page can link to their lines."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from shoal.core.schema import View

_FRAME = re.compile(r'File "(?P<file>[^"\n]{1,1000})", line (?P<line>[0-9]{1,7})')
_SOURCE = "/source/"
"""Folder of a node's work directory that holds the code."""


class Piece(View):
    """Part of a traceback; with `path` it names a line of the code."""

    text: str
    path: str = ""
    line: int = 0


def pieces(text: str, paths: Collection[str]) -> list[Piece]:
    """Split a traceback at the frames whose file is among `paths`. The texts of all pieces together are `text`."""
    return list(_split(text, frozenset(paths)))


def _split(text: str, paths: frozenset[str]) -> Iterator[Piece]:
    end = 0
    for found in _FRAME.finditer(text):
        path = _path_in(found["file"], paths)
        if not path:
            continue
        if found.start() > end:
            yield Piece(text=text[end : found.start()])
        yield Piece(text=found[0], path=path, line=int(found["line"]))
        end = found.end()
    if end < len(text):
        yield Piece(text=text[end:])


def _path_in(file: str, paths: frozenset[str]) -> str:
    """Return the path of a file within the code; empty if it is not of the code, such as a library's of the same name."""
    bare = file.removeprefix("./")
    if bare in paths:
        return bare
    start = bare.find(_SOURCE) if bare.startswith("/") else -1
    while start >= 0:
        if (inside := bare[start + len(_SOURCE) :]) in paths:
            return inside
        start = bare.find(_SOURCE, start + 1)
    return ""
