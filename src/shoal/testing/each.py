"""One test case for many similar things: check all of them, then fail once with all errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def check_each(things: Iterable[T], check: Callable[[T], None]) -> None:
    """Call `check` for each thing; raise one AssertionError that lists every thing whose check failed.

    Args:
        things: Things to check; their `str` names them in the message. An empty list is an error.
        check: Raises AssertionError for a thing that is wrong. Any other exception counts as a failure too.
    """
    wrong: list[str] = []
    checked = 0
    for thing in things:
        checked += 1
        try:
            check(thing)
        except Exception as error:
            text = str(error) or type(error).__name__
            wrong.append(f"{thing}: {text if isinstance(error, AssertionError) else f'{type(error).__name__}: {text}'}")
    if not checked:
        raise AssertionError("nothing to check")
    if wrong:
        raise AssertionError(f"{len(wrong)} of {checked} are wrong:\n" + "\n".join(wrong))
