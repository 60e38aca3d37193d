"""Commands that take several names."""

from __future__ import annotations

from collections.abc import Callable

from shoal.cli._output import out
from shoal.core.errors import ShoalError, UsageError


def demand(names: tuple[str, ...], noun: str) -> None:
    if not names:
        command = {"job": "training"}.get(noun, noun)
        raise UsageError(f"Say which {noun}s.", hint=f"{out.prog} {command} list")


def each(names: tuple[str, ...], act: Callable[[str], object]) -> int:
    """Do all that can be done; the first failure decides the exit code."""
    done, first = [], 0
    for name in names:
        try:
            done.append(act(name))
        except ShoalError as error:
            first = first or error.exit_code
            out.error(error.message, hint=error.hint)
    if out.json:
        out.emit(done)
    return first
