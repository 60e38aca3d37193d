"""Helpers of commands that accept several names."""

from __future__ import annotations

from collections.abc import Callable

from shoal.cli.shared.output import out
from shoal.core.errors import ShoalError, UsageError


def demand(names: tuple[str, ...], noun: str) -> None:
    if not names:
        command = {"job": "training"}.get(noun, noun)
        raise UsageError(f"Name at least one {noun}.", hint=f"{out.prog} {command} list")


def each(names: tuple[str, ...], act: Callable[[str], object]) -> int:
    """Call `act` for every name, also after failures; return the exit code of the first failure, or 0."""
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
