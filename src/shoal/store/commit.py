"""The one loop that commits an artifact by its manifest: commit, send the chunks that are missing, commit again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from shoal.core.errors import Refused

Answer = TypeVar("Answer")
TRIES = 5
"""Commits before giving up. More than two are needed only if a garbage collection removes chunks at the same time."""


def commit_until_complete(
    commit: Callable[[], Answer],
    send: Callable[[list[str]], object],
    missing: Callable[[Answer], list[str]],
    *,
    tries: int | None = TRIES,
) -> Answer:
    """Commit until no chunk is missing; return the last answer.

    Repeating a step is harmless: chunks are named by their hash, and the artifact is created only by a commit that finds all of
    them. Exceptions of `commit` and `send` end the loop.

    Args:
        commit: Commits the manifest and returns the answer.
        send: Sends the named chunks; called between two commits.
        missing: Returns the chunks that are missing according to an answer.
        tries: Largest number of commits; None for no limit.
    """
    made = 0
    while True:
        answer = commit()
        made += 1
        absent = missing(answer)
        if not absent:
            return answer
        if made == tries:
            raise Refused("The store keeps losing chunks that were sent. Try again.", hint="shoal store check")
        send(absent)
